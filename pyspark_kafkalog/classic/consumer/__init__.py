"""Consumers of the design papers: `SimpleConsumer` for one broker, and groups coordinated in ZooKeeper."""
