"""Who writes a load's files and lake tables: its tasks, or Spark."""
