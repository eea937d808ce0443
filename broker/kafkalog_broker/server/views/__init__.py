"""Logs as clients of another generation can read them."""
