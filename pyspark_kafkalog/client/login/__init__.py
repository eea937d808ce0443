"""How a connection logs in (SASL): the mechanisms, their tokens, and the exchange with a broker."""
