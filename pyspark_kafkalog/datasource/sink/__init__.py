"""The writes: rows to a producer, in transactions where the options say so."""
