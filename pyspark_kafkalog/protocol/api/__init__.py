"""Requests and responses, one module per theme. `protocol.exchange.APIS` is the table of all APIs."""
