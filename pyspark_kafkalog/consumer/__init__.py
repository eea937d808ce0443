"""The former place of `pyspark_kafkalog.classic.consumer` and `pyspark_kafkalog.classic.mirror`."""
