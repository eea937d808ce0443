"""The batch read: its plan in the driver, and its tasks."""
