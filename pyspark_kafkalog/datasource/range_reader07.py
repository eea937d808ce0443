"""Reads the byte positions of one task from a log of Kafka 0.7: fetch, and decode whole entries."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_kafkalog.client.corrupt_batches import CORRUPT
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.columnar.decoder import EngineName
from pyspark_kafkalog.columnar.v07_batches import V07BatchDecoder
from pyspark_kafkalog.datasource.lookup07 import no_entry_at
from pyspark_kafkalog.datasource.planning import OffsetRange
from pyspark_kafkalog.datasource.range_reader import Gone, RangeReader
from pyspark_kafkalog.errors import (
    ConnectionLost,
    CorruptMessage,
    KafkaError,
    MessageTooLarge,
    OffsetOutOfRange,
    RequestTimedOut,
)
from pyspark_kafkalog.formats.v07 import (
    ENTRY_HEADER_BYTES,
    entries,
    entry_header,
    next_sound_entry,
    sound_entry,
    verify_entry,
)
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.datasource.lookup07 import Lookup07

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.1
_LEAST_FETCH_BYTES = 64
_LARGEST_LOOKED_AT = 64 << 20
"""An entry above ``max.message.size`` may be sound, or have a damaged length: so far that is found out."""


@dataclass(frozen=True, slots=True)
class RangeReader07(RangeReader):
    """*Not thread-safe: belongs to one task.* Reads from the broker that the partition belongs to.

    Read are the messages of entries that begin in the range, whole ones where it ends within an entry.
    """

    lookup: Lookup07
    engine: EngineName = "auto"

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """See `RangeReader.read`.

        Raises:
            CorruptMessage: no entry begins where the range does, or the log is damaged.
            MessageTooLarge: an entry is above ``max.message.size``, or holds more than may be decompressed.
        """
        where, position = wanted.topic_partition, wanted.start
        skips, decoder = self.options.skip_corrupt, self._decoder(where)
        try:
            while position < wanted.end:
                decoder.given_to = position
                try:
                    data = self._fetch(wanted, position)
                    position = yield from decoder.stream(data, position, wanted.end, whole=skips)
                except CORRUPT as e:
                    if not skips:
                        raise
                    position = decoder.given_to
                    position = yield from self._around(wanted, position, e)
        except OffsetOutOfRange as e:
            raise Gone(OffsetRange(where, position, wanted.end), e.start, e.end) from e
        except RequestTimedOut as e:
            # Nothing came: either it is late, or the log ends before the range does.
            start, end = self.lookup.log_range(where)
            if start <= position < end:
                raise
            raise Gone(OffsetRange(where, position, wanted.end), start, end) from e

    def _decoder(self, where: TopicPartition) -> V07BatchDecoder:
        return V07BatchDecoder(
            topic=where.topic,
            partition=where.partition,
            columns=self.columns,
            broker=where.broker,
            engine=self.engine,
            max_entry_bytes=self.lookup.config.max_decompressed_bytes,
        )

    def _around(
        self, wanted: OffsetRange, start: int, cause: KafkaError
    ) -> Generator[pa.RecordBatch, None, int]:
        """What can be read from ``start`` up to the corrupt entry, which is left out; its value is where
        reading goes on. All is fetched once more before, by a new connection.
        """
        where, position, decoder = wanted.topic_partition, start, self._decoder(wanted.topic_partition)
        log.info("%s: reading on from offset %d once more, by a new connection: %s", where, start, cause)
        self.lookup.close()
        most = self.lookup.config.max_message_size
        data = self._bytes(where, start)
        while position < wanted.end:
            at = position - start
            entry = sound_entry(data, at, _LARGEST_LOOKED_AT)
            if entry is None and at > 0 and len(data) - at < most + ENTRY_HEADER_BYTES:
                return position  # perhaps only cut short: the next fetch begins with it
            try:
                if entry is None:
                    raise cause if at == 0 else CorruptMessage("no entry that checks out begins there")
                found = decoder.decode(data[at : entry.end], position, wanted.end)
            except CORRUPT as e:
                if entry is None:
                    self._check_size(where, position, data[at:], e)
                after = position + entry.size if entry is not None else self._next(wanted, data, start, at)
                after = min(after, wanted.end)
                text = "%s: offsets [%d, %d) are left out as corrupt (onCorruptBatch=skip): %s"
                log.warning(text, where, position, after, e)
                self.on_skip(position, after)
                return after
            yield from found.batches
            position = found.next_offset
        return position

    def _check_size(self, where: TopicPartition, position: int, data: memoryview, cause: KafkaError) -> None:
        """Raise ``cause`` where an entry that is too large to be read is sound: that is no damage."""
        try:
            header = entry_header(data, 0)
        except CorruptMessage:
            return
        if header is None or not len(data) < header[1] <= _LARGEST_LOOKED_AT:
            return
        found = self.lookup.consumer(where.broker).fetch_bytes(
            where.topic, where.partition, position, header[1]
        )
        if sound_entry(found, 0, _LARGEST_LOOKED_AT) is not None:
            raise cause

    def _next(self, wanted: OffsetRange, data: memoryview, start: int, at: int) -> int:
        """The offset of the next entry that checks out behind the one at byte ``at``; the range's end if none
        does. ``data`` begins at offset ``start``.
        """
        most = self.lookup.config.max_message_size
        while True:
            found = next_sound_entry(data, at, most)
            if found is not None:
                return start + found
            # An entry that began in the first half of these bytes would be whole.
            start += max(at + 1, len(data) - most - ENTRY_HEADER_BYTES)
            if start >= wanted.end:
                return wanted.end
            data, at = self._bytes(wanted.topic_partition, start), 0
            if sound_entry(data, 0, most) is not None:
                return start

    def _bytes(self, where: TopicPartition, position: int) -> memoryview:
        """Enough for an entry that begins in the first half, as far as the log goes."""
        config = self.lookup.config
        size = max(config.fetch_size, 2 * (config.max_message_size + ENTRY_HEADER_BYTES))
        return self.lookup.consumer(where.broker).fetch_bytes(where.topic, where.partition, position, size)

    def _fetch(self, wanted: OffsetRange, position: int) -> memoryview:
        """One whole entry or more from ``position`` on; the first of the range is looked at."""
        try:
            data = self._ask(wanted.topic_partition, position, wanted.end - position)
            if position == wanted.start:
                verify_entry(next(entries(data)))
            return data
        except (CorruptMessage, MessageTooLarge) as e:
            if position > wanted.start:
                raise
            raise CorruptMessage(no_entry_at(wanted.topic_partition, position, e)) from e

    def _ask(self, where: TopicPartition, position: int, left: int) -> memoryview:
        """What the broker has at ``position``; waits for it as long as ``kafkaConsumer.pollTimeoutMs``."""
        lookup, deadline = self.lookup, Deadline.after(self.options.poll_timeout_ms / 1000, self.lookup.clock)
        # What lies behind the range is another task's, or nobody's.
        size = min(lookup.config.fetch_size, max(left, _LEAST_FETCH_BYTES))
        while True:
            failure: KafkaError = RequestTimedOut(
                f"{where}: nothing came at offset {position} within {self.options.poll_timeout_ms} ms "
                "(kafkaConsumer.pollTimeoutMs)"
            )
            try:
                found = lookup.consumer(where.broker).fetch(where.topic, where.partition, position, size)
                if found.data:
                    return found.data
            except ConnectionLost as e:
                failure = lookup.lost(where, e)
            if deadline.passed:
                raise failure
            lookup.clock.sleep(_PAUSE_SECONDS)
