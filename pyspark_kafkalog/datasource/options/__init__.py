"""Options of Spark's reads and writes: their definitions, and their text as checked values."""
