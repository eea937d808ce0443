"""A topic under test: rows go in by partition, with the offsets and times that the test says."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import Header, NewRecord
from tests.support.protocol.raw_client import RawClient


class Topic:
    """One topic of the broker behind ``client``."""

    def __init__(self, client: RawClient, name: str) -> None:
        self.client, self.name = client, name

    def add(
        self, *values: bytes | str | int, partition: int = 0, timestamp: int = 1000, step: int = 0
    ) -> None:
        """Values as one batch, numbers as text; times begin at ``timestamp`` and are ``step`` apart."""
        rows = [
            NewRecord(value=v if isinstance(v, bytes) else str(v).encode(), timestamp=timestamp + i * step)
            for i, v in enumerate(values)
        ]
        self.add_records(rows, partition=partition)

    def add_records(
        self, rows: Sequence[NewRecord], *, partition: int = 0, codec: Codec = Codec.NONE
    ) -> None:
        """Records as one batch."""
        self.add_bytes(encode_batch(rows, codec=codec), partition=partition)

    def add_bytes(self, data: bytes, *, partition: int = 0) -> None:
        """A record batch as it is."""
        answer = self.client.produce(self.name, data, partition)
        assert answer.error_code == 0, answer.error_message

    def offsets(self, **by_partition: int) -> str:
        """JSON of offsets: ``topic.offsets(p0=3, p1=-1)``."""
        inner = ",".join(f'"{name[1:]}":{offset}' for name, offset in by_partition.items())
        return f'{{"{self.name}":{{{inner}}}}}'


def record(
    value: bytes | None, key: bytes | None = None, timestamp: int = 1000, headers: tuple[Header, ...] = ()
) -> NewRecord:
    """A record in few words."""
    return NewRecord(value=value, key=key, timestamp=timestamp, headers=headers)
