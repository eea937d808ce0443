"""Consumer groups: their committed offsets."""
