"""Read and load Kafka topics with Spark in pure Python."""
