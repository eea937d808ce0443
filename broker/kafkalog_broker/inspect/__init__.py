"""Offline tools for logs: one walk through segments; verify, dump, export. Never on a hot path."""
