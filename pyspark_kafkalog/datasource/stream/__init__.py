"""The streaming read: its batches, and the offsets in the checkpoint."""
