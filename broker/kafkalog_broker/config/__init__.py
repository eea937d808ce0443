"""The broker's properties: of the broker, a topic, a listener, an address."""
