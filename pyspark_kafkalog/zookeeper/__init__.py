"""ZooKeeper: the znodes of brokers and consumer groups, the session for them, and a server for laptops.

Functions that take a `Session` raise `ConnectionLost` if ZooKeeper does not answer in time; a write may then
have been made or not. Reading a znode that no Kafka writes raises `MalformedNode`; lists skip such a znode
with a warning.
"""
