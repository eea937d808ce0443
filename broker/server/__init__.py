"""The broker put together: handlers, topics, start and stop."""
