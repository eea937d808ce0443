"""The clusters to read: one abstract class, the wire since Kafka 0.8, and Kafka 0.7."""
