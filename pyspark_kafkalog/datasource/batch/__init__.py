"""The batch read: its plan in the driver, and what every task does."""
