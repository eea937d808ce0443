"""ZooKeeper: the znodes of brokers and consumer groups, the session that keeps them, a server for laptops."""
