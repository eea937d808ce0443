"""The writes: rows to a producer, optionally in transactions."""
