"""Producer ids."""
