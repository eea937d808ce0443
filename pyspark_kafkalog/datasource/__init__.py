"""The Spark data source ``kafkalog``."""

from pyspark_kafkalog.datasource import shipped_files as shipped_files
