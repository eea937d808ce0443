"""What Spark's options say: every option's definition, and its text as a checked value."""
