"""The clusters that are read: one abstract class, today's wire, and Kafka 0.7."""
