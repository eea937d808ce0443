"""Which partition a record goes to: by its key's hash as every Kafka client has it, else in turns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_CACHED_KEYS = 10_000


@lru_cache(maxsize=256)
def _words(count: int) -> Struct:
    return Struct(f"<{count}I")


def murmur2(data: bytes) -> int:
    """MurmurHash2 with Kafka's seed, 32 bits, unsigned.

    Java clients see the same bits as a signed number; `partition_for` takes the sign away as they do.
    Source: MurmurHash2 (Austin Appleby, public domain), seed of Kafka's ``Utils.murmur2``.
    """
    length = len(data)
    whole = length >> 2
    h = _SEED ^ length
    for word in _words(whole).unpack_from(data):
        k = word * _MULTIPLIER & _MASK
        h = h * _MULTIPLIER & _MASK ^ ((k ^ k >> 24) * _MULTIPLIER & _MASK)
    if length & 3:
        h = (h ^ int.from_bytes(data[whole << 2 :], "little")) * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    return h ^ h >> 15


def partition_for(key: bytes, partition_count: int) -> int:
    """The partition of ``key``: the same in every client that hashes as Kafka's own does."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class KeyPartitioner:
    """*Thread-safe: each step is one operation on a dict.* `partition_for` with a memory.

    Hashing in Python costs microseconds, and keys repeat. Remembers about 10,000 keys.
    """

    def __init__(self, partition_count: int) -> None:
        self._count = partition_count
        self._known: dict[bytes, int] = {}

    def __call__(self, key: bytes) -> int:
        """The partition of ``key``."""
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _CACHED_KEYS:
                self._known.clear()
            found = self._known[key] = partition_for(key, self._count)
        return found


class StickyPartitioner:
    """*Thread-safe.* The partition that records without a key go to now.

    It stays until `moved`, so that batches fill up instead of many staying small (KIP-480); then another
    one is drawn, among those that have a leader as long as there are any.
    """

    def __init__(self, partitions: Sequence[int], seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._choices = list(partitions)
        self.current = self._random.choice(self._choices)

    def moved(self) -> int:
        """Go to another partition, if there is one; it becomes `current`."""
        others = [partition for partition in self._choices if partition != self.current]
        if others:
            self.current = self._random.choice(others)
        return self.current
