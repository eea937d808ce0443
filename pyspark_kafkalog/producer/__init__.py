"""Today's producer. A record's way: `producer` → `routing` (its partition) → `accumulator` (its batch) →
`sender` (the thread that sends batches and handles responses) → `producer_batch` (the delivery).
"""
