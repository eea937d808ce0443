"""Which of a topic's partitions a key belongs to: as the first generation's producer has it, and as today's.

``partition(key, count)`` indexes the topic's sorted partitions: by broker and number on 0.7's wire, by number
alone on today's. Without a key nobody is asked: the partition is random.
"""

from __future__ import annotations

from typing import Any, Protocol

from pyspark_kafkalog.producer.message_encoder import key_bytes
from pyspark_kafkalog.producer.partitioner import partition_for

_INT_BITS, _LONG_BITS = 32, 64


class Partitioner(Protocol):
    """Chooses a partition by a key that is not None. May be called by several threads."""

    def partition(self, key: Any, partition_count: int) -> int:
        """A number from 0 to ``partition_count`` - 1."""
        ...


class JavaHashPartitioner:
    """*Thread-safe: it holds nothing.* ``abs(key.hashCode) % count``, as 0.7's ``DefaultPartitioner`` has it.

    For the one hash whose absolute value Java cannot hold, -2^31, 0.7 raises or not, by the count; here it is
    taken for 2^31.
    """

    def partition(self, key: Any, partition_count: int) -> int:
        """The partition of a text, a whole number or bytes. Raises `TypeError` for any other key."""
        return abs(java_hash(key)) % partition_count


class Murmur2Partitioner:
    """*Thread-safe: it holds nothing.* What Kafka's own clients have done since 0.8.2."""

    def partition(self, key: Any, partition_count: int) -> int:
        """The partition of bytes, or of a text's UTF-8. Raises `TypeError` for any other key."""
        return partition_for(key_bytes(key), partition_count)


PARTITIONERS: dict[str, type] = {"kafka.producer.DefaultPartitioner": JavaHashPartitioner}
"""Those that the first generation's configurations name."""


def java_hash(key: Any) -> int:
    """Java's ``hashCode``, a signed 32-bit number.

    A text as ``String``, by its UTF-16 units; a whole number as ``Integer`` where it fits one, else as
    ``Long``. Bytes as the string of these characters, so that a key in ASCII is the same key as text and as
    bytes: Java itself hashes arrays by their place in memory.

    Raises:
        TypeError: a key of another type, or a number that fits no ``Long``.
    """
    if isinstance(key, str):
        data = key.encode("utf-16-be", "surrogatepass")
        return _string_hash([high << 8 | low for high, low in zip(data[::2], data[1::2], strict=True)])
    if isinstance(key, (bytes, bytearray, memoryview)):
        return _string_hash(list(bytes(key)))
    if isinstance(key, int) and not isinstance(key, bool) and -(1 << 63) <= key < 1 << 63:
        fits_int = -(1 << 31) <= key < 1 << 31
        bits = key & (1 << _LONG_BITS) - 1
        return key if fits_int else _signed(bits ^ bits >> _INT_BITS)
    raise TypeError(
        f"a key must be str, bytes or a whole number of 64 bits to be hashed as in Java, not {key!r}"
    )


def _string_hash(units: list[int]) -> int:
    found = 0
    for unit in units:
        found = 31 * found + unit & 0xFFFFFFFF
    return _signed(found)


def _signed(bits: int) -> int:
    bits &= 0xFFFFFFFF
    return bits - (1 << _INT_BITS) if bits >> _INT_BITS - 1 else bits
