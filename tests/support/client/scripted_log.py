"""One partition's log behind a scripted broker: what it holds may change between two requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark_kafkalog.errors import CorruptMessage, ErrorCode
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.protocol.api.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, NewRecord
from tests.support.client.scripted_broker import Layout, ScriptedBroker

TOPIC = "t"
NO_HEADER = 1 << 63
INDEXED = 3
"""Every so many entries of a `DamagedLog` the index has a row."""


class ScriptedLog:
    """The log of ``t-0``, a batch per answer. *Not thread-safe: change it between requests only.*"""

    def __init__(
        self,
        data: bytes = b"",
        *,
        start: int = 0,
        aborted: Sequence[tuple[int, int]] = (),
        at_once: bool = False,
    ) -> None:
        """``aborted`` is told to whoever asks read_committed; ``at_once``: all of the log in one answer."""
        self.start, self.aborted, self.at_once = start, tuple(aborted), at_once
        self.last_stable: int | None = None
        """Where the log ends under read_committed, if that is not its end."""
        self._batches: list[tuple[int, int, bytes]] = []
        self.append(data)

    def append(self, data: bytes) -> None:
        """More batches at the end."""
        self._batches += [(f.first_offset, f.next_offset, data[f.position : f.end]) for f in frames(data)]

    @property
    def end(self) -> int:
        return max([self.start, *(next_offset for _, next_offset, _ in self._batches)])

    def keep(self, start: int | None = None, end: int | None = None) -> None:
        """Forget the batches below ``start`` and from ``end`` on."""
        self._batches = [
            b for b in self._batches if (start is None or b[1] > start) and (end is None or b[1] <= end)
        ]
        self.start = self.start if start is None else start

    def fetch(self, request: FetchRequest) -> FetchResponse:
        offset = request.topics[0].partitions[0].fetch_offset
        if not self.start <= offset <= self.end:
            return self._answer(b"", ErrorCode.OFFSET_OUT_OF_RANGE)
        found = [data for _, next_offset, data in self._batches if next_offset > offset]
        aborted = self.aborted if request.isolation_level == 1 else None
        return self._answer(b"".join(found if self.at_once else found[:1]), aborted=aborted)

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """The same for every partition that is asked for: a test may say that there are more."""
        committed = request.isolation_level == IsolationLevel.READ_COMMITTED
        latest = self.last_stable if committed and self.last_stable is not None else self.end
        offsets = {EARLIEST_TIMESTAMP: self.start, LATEST_TIMESTAMP: latest}
        parts = tuple(
            ListOffsetsPartitionResponse(
                partition_index=wanted.partition_index, offset=offsets[wanted.timestamp], timestamp=-1
            )
            for wanted in request.topics[0].partitions
        )
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name=TOPIC, partitions=parts),))

    def _answer(
        self, data: bytes, error: ErrorCode = ErrorCode.NONE, aborted: Sequence[tuple[int, int]] | None = None
    ) -> FetchResponse:
        listed = None if aborted is None else tuple(
            AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in aborted
        )  # fmt: skip
        partition = PartitionData(
            error_code=error,
            high_watermark=self.end,
            last_stable_offset=self.end,
            log_start_offset=self.start,
            records=data,
            aborted_transactions=listed,
        )
        return FetchResponse(responses=(FetchableTopicResponse(topic=TOPIC, partitions=(partition,)),))


@contextmanager
def serving(log: ScriptedLog, **options: Any) -> Iterator[ScriptedBroker]:
    """A scripted broker with topic ``t`` of one partition, which is ``log``."""
    with ScriptedBroker(Layout(leaders={TOPIC: {0: 0}}), **options) as broker:
        broker.default(ApiKey.FETCH, log.fetch)
        broker.default(ApiKey.LIST_OFFSETS, log.list_offsets)
        yield broker


def batches(*ranges: range) -> bytes:
    """A batch for each range of offsets; an offset's value is its number. Gaps in a range stay gaps."""
    return b"".join(_batch(r) for r in ranges)


def _batch(offsets: range) -> bytes:
    base = offsets.start
    return encode_batch(
        [NewRecord(b"%d" % offset, timestamp=1000) for offset in offsets],
        base_offset=base,
        offset_deltas=[offset - base for offset in offsets],
    )


class DamagedLog(ScriptedLog):
    """Entries as they lie, some of them damaged: their place in the log is that of the sound ones.

    It answers as a broker does: from the first entry on that ends at or after the offset asked for, as it
    lies there. *Not thread-safe.*
    """

    def __init__(self, entries: Sequence[bytes], *, finds: str = "all", limit: int = 1 << 30) -> None:
        """``finds`` says how it comes to an entry: ``all`` finds damaged ones too; ``sound`` answers with
        CORRUPT_MESSAGE where it would begin with a damaged one; ``claims`` goes by the headers, as Apache
        Kafka does, from the row of an index on. ``limit``: bytes of an answer, but for its first entry.
        """
        super().__init__(b"".join(entries), at_once=True)
        self._sound = [data for _, _, data in self._batches]
        self._stored = list(self._sound)
        self._finds, self._limit = finds, limit
        self.aborted_until = self.end
        """From here on no aborted transaction reaches into an answer."""

    def damage(self, index: int, data: bytes) -> None:
        """Have other bytes for an entry."""
        self._stored[index] = data

    def flip(self, index: int, byte: int, bit: int = 0) -> None:
        """Change one bit of an entry, counted from its end where ``byte`` is negative."""
        data = bytearray(self._stored[index])
        data[byte] ^= 1 << bit
        self.damage(index, bytes(data))

    def mend(self) -> None:
        self._stored = list(self._sound)

    def fetch(self, request: FetchRequest) -> FetchResponse:
        wanted = request.topics[0].partitions[0]
        if not self.start <= wanted.fetch_offset <= self.end:
            return self._answer(b"", ErrorCode.OFFSET_OUT_OF_RANGE)
        ends = [end for _, end, _ in self._batches]
        row = 0
        if self._finds == "claims":
            row = sum(base <= wanted.fetch_offset for base, _, _ in self._batches[::INDEXED]) - 1
            row *= INDEXED
            ends = [self.claimed_end(index) for index in range(len(ends))]
        first = next((i for i, end in enumerate(ends) if i >= row and end > wanted.fetch_offset), len(ends))
        damaged = self._stored[first : first + 1] != self._sound[first : first + 1]
        if (self._finds == "sound" and damaged) or NO_HEADER in ends[row : first + 1]:
            return self._answer(b"", ErrorCode.CORRUPT_MESSAGE)
        data = b"".join(self._stored[first:])[: min(wanted.partition_max_bytes, self._limit)]
        whole = self._stored[first] if first < len(self._stored) else b""
        listed = self.aborted if wanted.fetch_offset < self.aborted_until else ()
        aborted = listed if request.isolation_level == 1 else None
        return self._answer(max(data, whole, key=len), aborted=aborted)

    def claimed_end(self, index: int) -> int:
        """The offset after an entry by its own header; `NO_HEADER` where that leads astray."""
        data = self._stored[index]
        try:
            found = list(frames(data, start_offset=-(1 << 63)))
        except CorruptMessage:
            return NO_HEADER
        return found[0].next_offset if [f.size for f in found] == [len(data)] else NO_HEADER
