"""Requests and responses, one file for each theme. `protocol.exchange.APIS` is the table of all APIs."""
