"""What a producer sends a partition: record batches, or the message sets of before Kafka 0.11."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.config.producer import MAGICS, ProducerConfig
from pyspark_kafkalog.errors import UnsupportedCompression, UnsupportedVersion
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.formats.legacy_entry import MIN_ENTRY_BYTES
from pyspark_kafkalog.producer.encoder import SMALL_OVERHEAD, encode_batch, record_size_bound, sealed
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import NO_TIMESTAMP, Header, NewRecord

_BATCHES_SINCE = 3
"""The version of Produce from which on only record batches are taken; before it, only message sets."""

_ZSTD_SINCE = 7
_TIMESTAMPS_SINCE = 2
_TIMESTAMP_BYTES = 8
_LAST_OLD_FETCH = 3
"""Of Fetch. Kafka 4 knows neither it nor Produce 0-2, but must advertise these: librdkafka would not
compress otherwise (KAFKA-18659)."""


NOBODY = (-1, -1, -1)
"""The id, epoch and base sequence of a producer that has none."""


class Encoding(Protocol):
    """*Thread-safe: it holds nothing that changes.* How records become bytes, and what carries them."""

    small_overhead: int
    """What a record of less than `SMALL_CONTENT` bytes without headers takes on top of them at most."""

    has_headers: bool

    def size_bound(self, content_bytes: int, headers: Sequence[Header], own_time: bool) -> int:
        """No record whose key and value have ``content_bytes`` takes more before compression.

        ``own_time`` is whether the caller chose the timestamp.
        """
        ...

    def kept_times(self, times: list[int]) -> list[int]:
        """What the format has of the records' timestamps."""
        ...

    def encode(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        times: Sequence[int],
        headers: Sequence[Sequence[Header]] | None,
        producer: tuple[int, int, int],
    ) -> bytes:
        """The bytes of at least one record. ``producer`` is its id, epoch and base sequence, -1 for none.

        Raises:
            InvalidRecord: a length or time does not fit its field.
            UnsupportedCompression: the codec's library is not installed.
        """
        ...

    def produce_version(self, connection: Connection) -> int:
        """The version of Produce that takes these bytes to a broker.

        Raises:
            UnsupportedVersion: the broker does not take the format.
            UnsupportedCompression: it is too old for the codec.
        """
        ...


class RecordBatches:
    """*Thread-safe.* Format v2: one batch, which carries what idempotence needs."""

    small_overhead = SMALL_OVERHEAD
    has_headers = True

    def __init__(self, codec: Codec, level: int | None, *, transactional: bool = False) -> None:
        self._codec, self._level, self._transactional = codec, level, transactional

    def size_bound(self, content_bytes: int, headers: Sequence[Header], own_time: bool) -> int:
        return record_size_bound(content_bytes, headers, own_time)

    def kept_times(self, times: list[int]) -> list[int]:
        return times

    def encode(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        times: Sequence[int],
        headers: Sequence[Sequence[Header]] | None,
        producer: tuple[int, int, int],
    ) -> bytes:
        producer_id, epoch, base_sequence = producer
        return encode_batch(
            values,
            keys,
            times,
            headers,
            codec=self._codec,
            level=self._level,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=base_sequence,
            transactional=self._transactional,
        )

    def sealed(self, block: bytes, times: Sequence[int], producer: tuple[int, int, int]) -> bytes:
        """As `encode`, of records that are encoded already."""
        return sealed(
            block,
            times,
            codec=self._codec,
            level=self._level,
            producer=producer,
            transactional=self._transactional,
        )

    def produce_version(self, connection: Connection) -> int:
        return batch_version(connection, self._codec)


class MessageSets:
    """*Thread-safe.* Formats v0 and v1: an entry for each record, or one compressed wrapper around them.

    Offsets are 0, 1, ... as producers of that time wrote them; the broker makes its own.
    """

    has_headers = False

    def __init__(self, magic: int, codec: Codec, level: int | None) -> None:
        self._magic, self._codec, self._level = magic, codec, level
        self.small_overhead = MIN_ENTRY_BYTES + _TIMESTAMP_BYTES * magic

    def size_bound(self, content_bytes: int, headers: Sequence[Header], own_time: bool) -> int:  # noqa: ARG002
        return content_bytes + self.small_overhead

    def kept_times(self, times: list[int]) -> list[int]:
        return times if self._magic else [NO_TIMESTAMP] * len(times)

    def encode(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        times: Sequence[int],
        headers: Sequence[Sequence[Header]] | None,  # noqa: ARG002  (refused where records are taken)
        producer: tuple[int, int, int],  # noqa: ARG002
    ) -> bytes:
        rows = zip(values, keys if keys is not None else [None] * len(values), times, strict=True)
        records = [NewRecord(value, key, time) for value, key, time in rows]
        return encode_set(records, magic=self._magic, codec=self._codec, level=self._level)

    def produce_version(self, connection: Connection) -> int:
        """2 where the broker has it, as every one from 0.10 until 3.9 does; v0 goes in 0 and 1 as well."""
        least = _TIMESTAMPS_SINCE if self._magic else 0
        low, high = connection.served(ApiKey.PRODUCE) or (0, -1)
        oldest_fetch = (connection.served(ApiKey.FETCH) or (0, 0))[0]
        if low >= _BATCHES_SINCE or oldest_fetch > _LAST_OLD_FETCH:
            raise UnsupportedVersion(
                f"{connection.peer}: the broker takes no message sets, as Kafka 4 and later do not; "
                f"message.format=v{self._magic} cannot be sent there, v2 can"
            )
        version = min(high, _BATCHES_SINCE - 1)
        if version < max(low, least):
            raise UnsupportedVersion(
                f"{connection.peer}: the broker speaks Produce {low} to {high}; "
                f"message.format=v{self._magic} needs {least} or later"
            )
        return version


def batch_version(connection: Connection, codec: Codec = Codec.NONE) -> int:
    """The version of Produce that takes a record batch to a broker.

    Raises:
        UnsupportedVersion: the broker is older than 0.11.
        UnsupportedCompression: zstd, and the broker is older than 2.1.
    """
    if (connection.served(ApiKey.PRODUCE) or (0, _BATCHES_SINCE))[1] < _BATCHES_SINCE:
        raise UnsupportedVersion(
            f"{connection.peer}: the broker is older than Kafka 0.11 and takes no record batches; "
            "message.format=v1 is for 0.10, v0 for 0.8 and 0.9"
        )
    version = connection.version(ApiKey.PRODUCE)
    if codec is Codec.ZSTD and version < _ZSTD_SINCE:
        raise UnsupportedCompression(f"{connection.peer}: the broker is too old for compression.type=zstd")
    return version


def encoding_for(connection: Connection, codec: Codec) -> Encoding:
    """What a broker takes, as new as we have it: message sets only where it takes no record batches."""
    _, high = connection.served(ApiKey.PRODUCE) or (0, _BATCHES_SINCE)
    if high >= _BATCHES_SINCE:
        return RecordBatches(codec, None)
    return MessageSets(1 if high >= _TIMESTAMPS_SINCE else 0, codec, None)


def encoding_of(config: ProducerConfig) -> Encoding:
    """What `message.format`, `compression.type` and its level ask for."""
    codec = Codec.named(config.compression_type)
    if config.sends_old_sets:
        return MessageSets(MAGICS[config.message_format], codec, config.compression_level)
    return RecordBatches(codec, config.compression_level, transactional=config.transactional_id is not None)
