"""What the tests ask of every client that is not ours, and the records that they have it write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

WAIT_SECONDS = 90.0

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Message(NamedTuple):
    """A record as every client can say it."""

    value: bytes | None
    key: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def messages(count: int = 120) -> list[Message]:
    """Records with missing, empty and ordinary parts in turn; never without key and value, which two of the
    clients refuse to send.
    """
    values = (b"", None, b"value", b"long " * 200)
    keys = (None, b"key", b"")
    headers: tuple[tuple[tuple[str, bytes | None], ...], ...] = (
        (),
        (("h", b"1"),),
        (("twice", b"a"), ("twice", b"b"), ("naïve", b"\x00\xff")),
        (("empty", b""),),
    )
    return [
        Message(
            values[i % 4],
            keys[i % 3] if values[i % 4] is not None else b"gone",
            1_600_000_000_000 + 7 * i,
            headers[i // 4 % 4],
        )
        for i in range(count)
    ]


class ForeignClient(Protocol):
    """What the tests need of a client. Blocking, and each call makes and closes its own connections."""

    name: str

    def create_topic(self, servers: str, topic: str, partitions: int) -> None:
        """Make a topic through the client's admin interface."""
        ...

    def delete_topic(self, servers: str, topic: str) -> None:
        """Delete it the same way."""
        ...

    def topics(self, servers: str) -> set[str]:
        """Names of all topics."""
        ...

    def produce(
        self,
        servers: str,
        topic: str,
        partition: int,
        batch: Sequence[Message],
        codec: str,
        *,
        idempotent: bool,
    ) -> list[int]:
        """Write and wait for every answer; the offsets."""
        ...

    def consume(self, servers: str, topic: str, partition: int, offset: int, count: int) -> list[Message]:
        """Read ``count`` records from ``offset`` on, by assignment."""
        ...

    def commit(self, servers: str, group: str, topic: str, partition: int, offset: int) -> None:
        """Store an offset for a group without members."""
        ...

    def committed(self, servers: str, group: str, topic: str, partition: int) -> int | None:
        """The stored offset; None if there is none."""
        ...

    def offsets(
        self, servers: str, topic: str, partition: int, timestamp: int
    ) -> tuple[int, int, int | None]:
        """First offset, end offset, and the first at or after ``timestamp`` (None: there is none)."""
        ...
