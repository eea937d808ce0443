"""The cleaner of compacted logs: what is kept, what is cleaned next, how that replaces the old."""
