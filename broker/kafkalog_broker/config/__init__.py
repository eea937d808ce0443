"""Properties of the broker, topics and listeners."""
