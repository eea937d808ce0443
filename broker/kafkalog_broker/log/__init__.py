"""The segmented append-only log of one partition. Knows neither topics nor the network."""
