"""The segmented append-only log on disk."""
