"""Consumer groups: their members, and who has which partitions."""
