"""Records of which offsets each load read, created once and never changed. Knows neither Spark nor Kafka."""
