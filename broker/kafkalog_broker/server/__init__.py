"""The broker put together: dispatch, handlers, topics, registration, start and stop."""
