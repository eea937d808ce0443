"""The streaming read: where its batches begin and end, and what the checkpoint keeps."""
