"""The batch read that belongs to a load: what it plans, and the receipt of each task."""
