"""What the tasks of a load write themselves, without Spark's writers."""
