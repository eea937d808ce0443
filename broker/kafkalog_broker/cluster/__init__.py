"""The cluster as its brokers agree on it through ZooKeeper: topics, and owners of partitions."""
