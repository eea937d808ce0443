"""One partition's log behind a scripted broker: what it holds may change between two requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.protocol.api.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pyspark_kafkalog.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, NewRecord
from tests.support.scripted_broker import Layout, ScriptedBroker

TOPIC = "t"


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
