"""Producer ids and sequences."""
