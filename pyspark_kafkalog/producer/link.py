"""One broker as the sender sees it."""

from __future__ import annotations

from pyspark_kafkalog.client.connection import Connection, Ticket
from pyspark_kafkalog.producer.batch import ProducerBatch


class Link:
    """*Owned by the sender's thread.* The connection to a broker, if any, and the batches not answered."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.connection: Connection | None = None
        self.sent: dict[Ticket, list[ProducerBatch]] = {}
        self.unconfirmed: list[ProducerBatch] = []
        self.failures = 0
        self.not_before = 0.0

    def batches(self) -> list[ProducerBatch]:
        """Every batch given to this broker of which nothing is known."""
        return [batch for batches in self.sent.values() for batch in batches] + self.unconfirmed
