"""The current state of a broker or cluster, as a page, Prometheus metrics and JSON."""
