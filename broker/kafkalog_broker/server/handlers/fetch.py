"""Read records of partitions.

API    Versions  Left out
-----  --------  ---------------------------------------------------------------------------------------------
Fetch  0-13      incremental fetch sessions (the answer's session id is always 0, so clients continue with
                 full requests), replicas and racks

`delayed_fetch` waits for ``min_bytes``; `old_fetch` shows versions before 4 what they can read.

An answer keeps a file open for each partition that it has data of, so it has data of at most as many as
`OpenFiles.share` says. The others come empty, and are first in the client's next answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, cast
from uuid import UUID

from kafkalog_broker.log.aborted_transactions import AbortedTransaction as Aborted
from kafkalog_broker.server.delayed_fetch import ParkedFetch
from kafkalog_broker.server.dispatch import LATER, MANY, Context, handles
from kafkalog_broker.server.log_access import ANY_EPOCH, Allowance, Entries, ReadableLog
from kafkalog_broker.server.old_fetch import BATCHES_SINCE, OlderReader
from pyspark_kafkalog.errors import ErrorCode, KafkaError, OffsetOutOfRange, UnknownTopicId
from pyspark_kafkalog.protocol.api import fetch as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.types import IsolationLevel, TopicPartition

_WHOLE_FIRST_SINCE = 3
"""Before, a first entry above the partition's limit is cut, so that the client learns to raise the limit."""
_IDS_SINCE = 13
_FULL_FETCH, _SESSIONLESS = 0, -1
"""Session epochs; each closes the session that the request names. Source: Kafka 4.1 ``FetchManager``."""
_LONGEST_WAIT_MS = 60_000
"""Clients may ask to wait for weeks, but each wait keeps a timer: answer empty, and they ask again."""

_LOOKING_MS = 500
"""A search that takes longer gets an empty answer; the next request continues it."""
_SOON_SECONDS = 0.001


@dataclass(slots=True)
class _Answer:
    """One pass over ``wanted``. ``ends``: before reading. ``left_out`` is the first that had no room."""

    wanted: Sequence[tuple[str | None, api.FetchPartition]]
    committed: bool
    files_left: int
    topics: list[api.FetchableTopicResponse] = field(default_factory=list)
    slices: list[Entries] = field(default_factory=list)
    ends: list[tuple[ReadableLog, int]] = field(default_factory=list)
    size_bytes: int = 0
    failed: bool = False
    left_out: TopicPartition | None = None
    allowance: Allowance = field(default_factory=Allowance)

    @property
    def unfinished(self) -> bool:
        """Whether one request's work was used up without finding anything."""
        return self.allowance.short and not self.size_bytes and not self.failed

    def suffices(self, min_bytes: int) -> bool:
        """Whether it can be sent: enough data, an error, or one request's work used up after some data."""
        if self.unfinished:
            return False
        return self.size_bytes >= min_bytes or self.failed or self.allowance.short or not self.topics

    def end_of(self, log: ReadableLog) -> int:
        return log.last_stable_offset if self.committed else log.readable_end

    def drop(self) -> None:
        for piece in self.slices:
            piece.close()


def _takes_long(request: api.FetchRequest, ctx: Context) -> bool:
    """Whether there are many partitions, or entries to convert: for a client before v2, or from 0.7."""
    if ctx.version < BATCHES_SINCE or sum(len(topic.partitions) for topic in request.topics) > MANY:
        return True
    is_foreign = ctx.services.logs.is_foreign
    return any(
        is_foreign(TopicPartition(name, want.partition))
        for name, topic in _named(request, ctx)
        for want in topic.partitions
        if name is not None
    )


@handles(ApiKey.FETCH, (0, 13), (Operation.READ, ResourceType.TOPIC), takes_long=_takes_long)
def fetch(request: api.FetchRequest, ctx: Context) -> Any:
    """Send slices of the logs from their files, without reading them; logs of 0.7 through a view."""
    if request.session_epoch not in (_FULL_FETCH, _SESSIONLESS):
        return api.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    request = _each_once(request)
    answer = _read(request, ctx)
    wait_ms = min(request.max_wait_ms, _LONGEST_WAIT_MS)
    if answer.unfinished:
        wait_ms = max(wait_ms, _LOOKING_MS)
    if wait_ms <= 0 or answer.suffices(request.min_bytes):
        return _response(answer, ctx)
    answer.drop()
    _park(request, ctx, answer, ctx.services.clock.monotonic() + wait_ms / 1000)
    return LATER


def _each_once(request: api.FetchRequest) -> api.FetchRequest:
    """The request without repeated partitions, as in Kafka; each would list all aborted transactions."""
    named = [(t.topic, t.topic_id, p.partition) for t in request.topics for p in t.partitions]
    if len(named) <= 1 or len(set(named)) == len(named):
        return request
    seen: set[tuple[str, UUID, int]] = set()
    topics = []
    for topic in request.topics:
        partitions = []
        for want in topic.partitions:
            key = topic.topic, topic.topic_id, want.partition
            if key not in seen:
                seen.add(key)
                partitions.append(want)
        topics.append(replace(topic, partitions=tuple(partitions)))
    return replace(request, topics=tuple(topics))


def _response(answer: _Answer, ctx: Context) -> api.FetchResponse:
    turns = ctx.services.turns
    if answer.left_out is not None or ctx.reply.peer in turns.places:
        turns.note(ctx.reply.peer, answer.left_out)
    return api.FetchResponse(responses=tuple(answer.topics))


def _park(request: api.FetchRequest, ctx: Context, seen: _Answer, deadline: float) -> None:
    """Wait for missing data. The read is repeated on waking, so a parked fetch holds no slice."""
    fetches, clock = ctx.services.fetches, ctx.services.clock

    def again() -> Any:
        answer = _read(request, ctx)
        # At the end of a transaction it is unknown how many bytes are still hidden by others.
        waits_on = answer.unfinished or (seen.committed and not answer.suffices(request.min_bytes))
        if waits_on and clock.monotonic() < deadline and not fetches.closed:
            if not answer.unfinished:
                answer.drop()
            _park(request, ctx, answer, deadline)
            return LATER
        return _response(answer, ctx)

    partitions = {TopicPartition(name, want.partition) for name, want in seen.wanted if name is not None}
    finish = partial(ctx.finish_in_worker if ctx.takes_long else ctx.finish, again)
    parked = ParkedFetch(partitions, request.min_bytes - seen.size_bytes, finish, seen.committed)
    left = max(0.0, deadline - clock.monotonic())
    fetches.park(parked, min(left, _SOON_SECONDS) if seen.unfinished else left)
    ctx.reply.on_close(lambda: fetches.drop(parked))
    # Appends between the read and the parking did not wake it.
    if any(seen.end_of(log) != end for log, end in seen.ends):
        fetches.wake(parked)


def _read(request: api.FetchRequest, ctx: Context) -> _Answer:
    """Slice every partition within the limits of KIP-74: only the first with data may exceed them."""
    wanted = [(name, want) for name, topic in _named(request, ctx) for want in topic.partitions]
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    answer = _Answer(wanted, committed, ctx.services.logs.files_per_answer())
    left = min(request.max_bytes, ctx.services.config.fetch_max_bytes)
    found: list[api.PartitionData | None] = [None] * len(wanted)
    try:
        for number in _in_turn(wanted, ctx.services.turns.places.get(ctx.reply.peer)):
            topic, want = wanted[number]
            if topic is None:
                data = _failed(want.partition, ctx.refused(UnknownTopicId("no topic has the id asked for")))
            else:
                data = _read_partition(TopicPartition(topic, want.partition), want, left, ctx, answer)
            if data.error_code is not ErrorCode.NONE:
                answer.failed = True
            size = len(data.records or b"")
            answer.size_bytes += size
            left = max(0, left - size)
            found[number] = data
    except BaseException:
        answer.drop()
        raise
    each = iter(found)
    for asked in request.topics:
        partitions = tuple(cast("api.PartitionData", next(each)) for _ in asked.partitions)
        answer.topics.append(
            api.FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id, partitions=partitions)
        )
    return answer


def _named(request: api.FetchRequest, ctx: Context) -> list[tuple[str | None, api.FetchTopic]]:
    if ctx.version < _IDS_SINCE:
        return [(topic.topic, topic) for topic in request.topics]
    topics, found = ctx.services.topics, []
    for topic in request.topics:
        try:
            name: str | None = topics.name_of(topic.topic_id)
        except UnknownTopicId:
            name = None
        found.append((name, topic))
    return found


def _in_turn(
    wanted: Sequence[tuple[str | None, api.FetchPartition]], first: TopicPartition | None
) -> Iterable[int]:
    """Indexes into ``wanted``, starting at ``first`` if it is there, and wrapping around."""
    numbers = range(len(wanted))
    if first is None:
        return numbers
    start = next(
        (n for n in numbers if wanted[n][1].partition == first.partition and wanted[n][0] == first.topic), 0
    )
    return chain(numbers[start:], numbers[:start])


def _read_partition(
    partition: TopicPartition, want: api.FetchPartition, left: int, ctx: Context, answer: _Answer
) -> api.PartitionData:
    try:
        if ctx.services.authorizer is not None or ctx.refusal is not None:
            ctx.demand(Operation.READ, ResourceType.TOPIC, partition.topic)
        epoch = max(ANY_EPOCH, want.current_leader_epoch)  # of a fetch, Kafka takes any negative one for none
        log = ctx.services.logs.readable(partition, answer.allowance, epoch)
        answer.ends.append((log, answer.end_of(log)))
        limit = want.partition_max_bytes
        at_least_one = answer.size_bytes == 0
        if not answer.files_left or not (left or at_least_one or ctx.version < BATCHES_SINCE):
            return _without_room(partition, want, log, answer)
        source: ReadableLog | OlderReader = log
        if ctx.version < BATCHES_SINCE:
            part = answer.allowance.part()
            source = OlderReader(log, ctx.version, part, ctx.services.metrics)
        cut_first = ctx.version < _WHOLE_FIRST_SINCE and left >= limit
        piece = source.read(
            want.fetch_offset,
            max(0, min(limit, left)),
            at_least_one=at_least_one or cut_first,
            committed_only=answer.committed,
        )
        if cut_first and len(piece) > limit:
            piece.cut(max(0, limit))
        if len(piece):
            answer.slices.append(piece)
            answer.files_left -= 1
        elif not at_least_one and want.fetch_offset < answer.end_of(log):
            answer.left_out = answer.left_out or partition
    except OffsetOutOfRange as e:
        # Kafka sends no range; with it a client can tell the user.
        return _failed(partition.partition, ctx.refused(e), log_start_offset=e.start, high_watermark=e.end)
    except KafkaError as e:
        return _failed(partition.partition, ctx.refused(e))
    return _partition_data(partition, log, piece, piece.aborted if answer.committed else None)


def _without_room(
    partition: TopicPartition, want: api.FetchPartition, log: ReadableLog, answer: _Answer
) -> api.PartitionData:
    """No data, as other partitions have filled the answer; opens no file. Raises as a read would."""
    start, end, offset = log.start_offset, log.readable_end, want.fetch_offset
    if not start <= offset <= end:
        raise OffsetOutOfRange(str(partition), offset, start, end)
    if offset < answer.end_of(log):
        answer.left_out = answer.left_out or partition
    return _partition_data(partition, log, b"", () if answer.committed else None)


def _partition_data(
    partition: TopicPartition, log: ReadableLog, records: Any, aborted: Sequence[Aborted] | None
) -> api.PartitionData:
    """``aborted`` is None if no isolation was requested: librdkafka complains about a list then."""
    transactions = None
    if aborted is not None:
        transactions = tuple(api.AbortedTransaction(each.producer_id, each.first_offset) for each in aborted)
    return api.PartitionData(
        partition_index=partition.partition,
        high_watermark=log.readable_end,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.start_offset,
        aborted_transactions=transactions,
        records=records,
    )


def _failed(
    partition: int, code: ErrorCode, *, log_start_offset: int = -1, high_watermark: int = -1
) -> api.PartitionData:
    return api.PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        records=b"",
    )
