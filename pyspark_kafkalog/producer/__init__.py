"""Today's producer. The path of a record: `producer`, `routing` (its partition), `accumulator` (its batch),
`sender` (the thread that sends batches and handles responses), `producer_batch` (its delivery).
"""
