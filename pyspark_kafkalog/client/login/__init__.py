"""SASL logins of connections: mechanisms, tokens, and the exchange with a broker."""
