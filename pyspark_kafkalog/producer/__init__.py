"""Sending messages: partitioner, accumulator, producer."""
