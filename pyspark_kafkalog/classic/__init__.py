"""The API of the design papers: producers, consumers and mirrors, on the wire of Kafka 0.7 and on today's."""
