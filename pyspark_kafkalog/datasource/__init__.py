"""The Spark data source ``kafkalog``."""
