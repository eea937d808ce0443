"""The assembled broker: dispatch, handlers, topics, registration, start and stop."""
