"""Logs converted for clients of another generation."""
