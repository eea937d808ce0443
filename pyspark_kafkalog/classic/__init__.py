"""The API of the design papers: producers, consumers and mirrors, on the wire of Kafka 0.7 and on today's.

All calls that use a broker or ZooKeeper raise `ConnectionLost` if it does not answer in time, and
`KafkaError` for other refusals; constructors raise `InvalidConfig` for invalid properties.
"""
