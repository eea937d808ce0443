"""Where the tasks of a load run: in Spark, or in processes of this machine."""
