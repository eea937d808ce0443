"""Sockets, threads and sends. Knows bytes, not Kafka."""
