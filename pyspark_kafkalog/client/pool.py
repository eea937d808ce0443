"""Open connections by address, so that each broker is connected to once."""

from __future__ import annotations

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.config.client import ClientConfig
from pyspark_kafkalog.errors import KafkaError

Address = tuple[str, int]


class ConnectionPool:
    """*Not thread-safe: it belongs to one `Cluster`.* At most one usable connection per address."""

    def __init__(self, config: ClientConfig, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._config, self._clock = config, clock
        self._open: dict[Address, Connection] = {}

    def get(self, address: Address, deadline: Deadline) -> Connection:
        """The open connection to ``address``, or a new one.

        Raises:
            ConnectionLost: it cannot be made by the deadline.
            InvalidRequest, FrameTooLarge: what answers there is not a Kafka broker.
        """
        connection = self.existing(address)
        if connection is None:
            connection = Connection(*address, self._config, deadline=deadline, clock=self._clock)
            self._open[address] = connection
        return connection

    def existing(self, address: Address) -> Connection | None:
        """The open connection to ``address``, if there is one that has not failed."""
        connection = self._open.get(address)
        if connection is not None and connection.broken:
            del self._open[address]
            return None
        return connection

    def any_existing(self) -> Connection | None:
        """An open connection to any broker: one that waits for no answer, if there is such."""
        usable = [connection for address in list(self._open) if (connection := self.existing(address))]
        return min(usable, key=lambda connection: connection.in_flight, default=None)

    def drop_lost(self) -> None:
        """Close the connections that the other side has closed; it is noticed here without a request."""
        for address in list(self._open):
            connection = self.existing(address)
            if connection is not None:
                try:
                    connection.receive_now()
                except KafkaError:
                    del self._open[address]

    def close(self) -> None:
        """Close every connection; the pool can be used again."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()
