"""The API of the design papers: producers, consumers and mirrors, on Kafka 0.7's wire and on today's.

Calls to a broker or ZooKeeper raise `ConnectionLost` if it does not answer in time, and `KafkaError` if it
refuses. Constructors raise `InvalidConfig` for invalid properties.
"""
