"""Producers of the design papers: for one broker, synchronous or queued, and for a whole cluster."""
