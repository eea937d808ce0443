"""ZooKeeper: znodes of brokers and consumer groups, the session, and a server for laptops.

Functions that take a `Session` raise `ConnectionLost` if ZooKeeper does not answer in time; a write may
have happened anyway. A znode that Kafka would not write raises `MalformedNode`; lists skip it and warn.
"""
