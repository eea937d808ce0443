"""Producers of the design papers: of one broker, synchronous or queued, and of all that ZooKeeper knows."""
