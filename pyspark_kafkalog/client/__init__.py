"""Connections to brokers, and who leads which partition."""
