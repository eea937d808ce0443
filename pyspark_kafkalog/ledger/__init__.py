"""Which offsets each load read, kept in records that are created once. Knows neither Spark nor Kafka."""
