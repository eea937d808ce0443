"""Fetching messages."""
