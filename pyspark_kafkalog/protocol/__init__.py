"""Requests and responses of the wire protocol. Pure."""
