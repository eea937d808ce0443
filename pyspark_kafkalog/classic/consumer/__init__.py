"""Consumers of the design papers: the simple consumer of one broker, and groups coordinated in ZooKeeper."""
