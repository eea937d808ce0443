"""Which broker owns which partition of today's wire, as the brokers of one ZooKeeper agree on it."""
