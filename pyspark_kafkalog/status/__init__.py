"""What a broker or any cluster is doing now, as a page, as Prometheus metrics and as JSON."""
