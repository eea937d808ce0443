"""Offline tools for logs: verify, export, list. Never on a hot path."""
