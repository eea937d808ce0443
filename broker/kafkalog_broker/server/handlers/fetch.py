"""Read records of partitions.

API    Versions  Left out
-----  --------  ----------------------------
Fetch  0-13      replicas and racks

`fetch_sessions` keeps what a client fetches, `delayed_fetch` waits for ``min_bytes``; `old_fetch` shows
versions before 4 what they can read.

Small pieces of data are copied into the answer. Larger ones keep their files open until they are sent, so an
answer has at most as many of them as `OpenFiles.share` says. Partitions that are left out come empty, and are
first in the next answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, groupby
from typing import Any
from uuid import UUID

import msgspec

from kafkalog_broker.log.aborted_transactions import AbortedTransaction as Aborted
from kafkalog_broker.log.log import Log
from kafkalog_broker.server.delayed_fetch import ParkedFetch
from kafkalog_broker.server.dispatch import LATER, MANY, Context, handles
from kafkalog_broker.server.fetch_sessions import (
    FULL_FETCH,
    SESSIONLESS,
    FetchSession,
    Key,
    Settled,
    Wanted,
)
from kafkalog_broker.server.log_access import ANY_EPOCH, Allowance, Entries, ReadableLog
from kafkalog_broker.server.old_fetch import BATCHES_SINCE, OlderReader
from pyspark_kafkalog.errors import ErrorCode, KafkaError, OffsetOutOfRange, ServerError, UnknownTopicId
from pyspark_kafkalog.protocol.api import fetch as api
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Operation, ResourceType
from pyspark_kafkalog.types import IsolationLevel, TopicPartition

_WHOLE_FIRST_SINCE = 3
"""Before, a first entry above the partition's limit is cut, so that the client learns to raise the limit."""
_IDS_SINCE = 13
_SESSIONS_SINCE = 7
_LONGEST_WAIT_MS = 60_000
"""Clients may ask to wait for weeks, but each wait keeps a timer: answer empty, and they ask again."""

_LOOKING_MS = 500
"""A search that takes longer gets an empty answer; the next request continues it."""
_SOON_SECONDS = 0.001

_COPIED_BYTES, _COPIED_IN_ALL = 8192, 1 << 20
"""Limits of what is copied into an answer, for one partition and in all: slow clients keep it in memory."""

_MANY_LOOKED_AT = 10 * MANY
"""Partitions of a session that take some ms to look at."""


_Found = tuple[Wanted, api.PartitionData]


class _Asked(msgspec.Struct, frozen=True):
    """What a fetch is of: all that it names, or a ``session`` at its ``epoch``."""

    request: api.FetchRequest
    named: Sequence[Wanted] = ()
    session: FetchSession | None = None
    epoch: int = 0

    @property
    def committed(self) -> bool:
        return self.request.isolation_level == IsolationLevel.READ_COMMITTED

    @property
    def wanted(self) -> Sequence[Wanted]:
        return self.named if self.session is None else self.session.all()


@dataclass(slots=True)
class _Answer:
    """One pass over what is wanted. ``ends``: before reading. ``left_out`` is the first that had no room.
    ``for_session``: note how logs are, which only sessions ask.
    """

    committed: bool
    files_left: int
    for_session: bool
    copies_left: int = _COPIED_IN_ALL
    found: list[_Found] = field(default_factory=list)
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
        return self.size_bytes >= min_bytes or self.failed or self.allowance.short

    @property
    def still_holds(self) -> bool:
        """Whether reading again would find the same: nothing was there, and nothing has come."""
        return not (self.size_bytes or self.allowance.short) and all(
            self.end_of(log) == end and log.readable_end == data.high_watermark
            for (log, end), (_, data) in zip(self.ends, self.found, strict=True)
        )

    def end_of(self, log: ReadableLog) -> int:
        return log.last_stable_offset if self.committed else log.readable_end

    def take(self, piece: Entries) -> Entries | bytes:
        """``piece``, or its bytes if they are few."""
        size = len(piece)
        if size <= _COPIED_BYTES and size <= self.copies_left:
            self.copies_left -= size
            try:
                return piece.read()
            finally:
                piece.close()
        self.files_left = max(0, self.files_left - 1)
        self.slices.append(piece)
        return piece

    def drop(self) -> None:
        for piece in self.slices:
            piece.close()


def _takes_long(request: api.FetchRequest, ctx: Context) -> bool:
    """Whether there are many partitions, or entries to convert: for a client before v2, or from 0.7."""
    if ctx.version < BATCHES_SINCE or sum(len(topic.partitions) for topic in request.topics) > MANY:
        return True
    if ctx.services.fetch_sessions.size_of(request.session_id) > _MANY_LOOKED_AT:
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
    try:
        asked = _asked(request, ctx)
    except ServerError as e:
        return api.FetchResponse(error_code=ctx.refused(e))
    if asked.session is None and not asked.named:
        return api.FetchResponse()
    answer = _read(asked, ctx)
    wait_ms = min(request.max_wait_ms, _LONGEST_WAIT_MS)
    if answer.unfinished:
        wait_ms = max(wait_ms, _LOOKING_MS)
    if wait_ms <= 0 or answer.suffices(request.min_bytes):
        return _response(asked, answer, ctx)
    answer.drop()
    _park(asked, ctx, answer, ctx.services.clock.monotonic() + wait_ms / 1000)
    return LATER


def _asked(request: api.FetchRequest, ctx: Context) -> _Asked:
    """Raises `ServerError` if the session cannot go on."""
    sessions, named = ctx.services.fetch_sessions, _named(request, ctx)
    if request.session_epoch not in (FULL_FETCH, SESSIONLESS) and ctx.refusal is None:
        session = sessions.go_on(request, ctx.principal, named, has_ids=ctx.version >= _IDS_SINCE)
        return _Asked(request) if session is None else _Asked(request, (), session, session.epoch)
    sessions.close(request.session_id, ctx.principal)
    wanted = [Wanted.of(name, topic, want) for name, topic in named for want in topic.partitions]
    if _repeats(request.topics):
        # As in Kafka; each repetition of a partition would list all aborted transactions.
        once: dict[Key, Wanted] = {}
        for each in wanted:
            once.setdefault(each.key, each)
        wanted = list(once.values())
    return _Asked(request, wanted)


def _repeats(topics: Sequence[api.FetchTopic]) -> bool:
    if len({(topic.topic, topic.topic_id) for topic in topics}) < len(topics):
        return True
    return any(len({want.partition for want in topic.partitions}) < len(topic.partitions) for topic in topics)


def _response(asked: _Asked, answer: _Answer, ctx: Context) -> api.FetchResponse:
    session, session_id = asked.session, 0
    if session is not None:
        if session.epoch != asked.epoch:
            answer.drop()
            error = ServerError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"session {session.id} went on meanwhile"
            )
            return api.FetchResponse(error_code=ctx.refused(error))
        session_id = session.id
        found = [(each, data) for each, data in answer.found if each.is_news(data)]
        had_data = [each for each, data in found if len(data.records or b"")]
        ctx.services.fetch_sessions.served(session, had_data)
    else:
        found = answer.found
        if found[0][0] is not asked.named[0]:
            of = {each.key: data for each, data in found}
            found = [(each, of[each.key]) for each in asked.named]
        turns = ctx.services.turns
        if answer.left_out is not None or ctx.reply.peer in turns.places:
            turns.note(ctx.reply.peer, answer.left_out)
        if asked.request.session_epoch == FULL_FETCH and ctx.version >= _SESSIONS_SINCE:
            session_id = _opened(asked, found, ctx)
    return api.FetchResponse(session_id=session_id, responses=_by_topic(found))


def _opened(asked: _Asked, found: Iterable[_Found], ctx: Context) -> int:
    """The id of a session for what was asked; 0 if there is none."""
    if ctx.refusal is not None:
        return 0
    for each, data in found:
        each.is_news(data)
    return ctx.services.fetch_sessions.open(ctx.principal, asked.named, has_ids=ctx.version >= _IDS_SINCE)


def _by_topic(found: Iterable[_Found]) -> tuple[api.FetchableTopicResponse, ...]:
    """Neighbours from one entry of a request are together."""
    entries = [list(same) for _, same in groupby(found, key=lambda one: id(one[0].topic))]
    return tuple(
        api.FetchableTopicResponse(
            topic=entry[0][0].topic.topic,
            topic_id=entry[0][0].topic.topic_id,
            partitions=tuple(data for _, data in entry),
        )
        for entry in entries
    )


def _park(asked: _Asked, ctx: Context, seen: _Answer, deadline: float) -> None:
    """Wait for missing data. The read is repeated if there may be some, so a parked fetch holds no slice."""
    fetches, clock, min_bytes = ctx.services.fetches, ctx.services.clock, asked.request.min_bytes

    def again() -> Any:
        unchanged = parked.expired and seen.still_holds and not _is_stirred(asked, seen, ctx)
        answer = seen if unchanged else _read(asked, ctx)
        # At the end of a transaction it is unknown how many bytes are still hidden by others.
        waits_on = answer.unfinished or (seen.committed and not answer.suffices(min_bytes))
        if waits_on and clock.monotonic() < deadline and not fetches.closed:
            if not answer.unfinished:
                answer.drop()
            _park(asked, ctx, answer, deadline)
            return LATER
        return _response(asked, answer, ctx)

    partitions = [each.partition for each in asked.wanted if each.partition is not None]
    finish = partial(ctx.finish_in_worker if ctx.takes_long else ctx.finish, again)
    parked = ParkedFetch(partitions, min_bytes - seen.size_bytes, finish, seen.committed)
    left = max(0.0, deadline - clock.monotonic())
    fetches.park(parked, min(left, _SOON_SECONDS) if seen.unfinished else left)
    ctx.reply.on_close(lambda: fetches.drop(parked))
    # Appends between the read and the parking did not wake it.
    if any(seen.end_of(log) != end for log, end in seen.ends) or _is_stirred(asked, seen, ctx):
        fetches.wake(parked)


def _is_stirred(asked: _Asked, seen: _Answer, ctx: Context) -> bool:
    """Whether there may be something new in a session's partitions that were not read."""
    if asked.session is None:
        return False
    read = {id(each) for each, _ in seen.found}
    return any(id(each) not in read for each in asked.session.stirred(ctx.services.logs.logs.logs))


def _read(asked: _Asked, ctx: Context) -> _Answer:
    """Slice every partition within the limits of KIP-74: only the first with data may exceed them."""
    request = asked.request
    for_session = request.session_epoch != SESSIONLESS
    answer = _Answer(asked.committed, ctx.services.logs.files_per_answer(), for_session)
    left = min(request.max_bytes, ctx.services.config.fetch_max_bytes)
    try:
        for each in _to_read(asked, ctx):
            if each.partition is None:
                unknown = ctx.refused(UnknownTopicId("no topic has the id asked for"))
                data = _failed(each.want.partition, unknown)
            else:
                data = _read_partition(each.partition, each, left, ctx, answer)
            if data.error_code is not ErrorCode.NONE:
                answer.failed = True
            size = len(data.records or b"")
            answer.size_bytes += size
            left = max(0, left - size)
            answer.found.append((each, data))
    except BaseException:
        answer.drop()
        raise
    return answer


def _to_read(asked: _Asked, ctx: Context) -> Iterable[Wanted]:
    """In the order in which they are read; of a session those of which something may be new."""
    session, ownership = asked.session, ctx.services.ownership
    if session is None:
        return _in_turn(asked.named, ctx.services.turns.places.get(ctx.reply.peer))
    found = session.stirred(ctx.services.logs.logs.logs)
    if ownership is not None or ctx.services.authorizer is not None:
        stirred = set(map(id, found))
        is_readable = _rights(ctx)
        for each in session.all():
            if id(each) in stirred or (partition := each.partition) is None:
                continue
            is_ours = ownership is None or ownership.is_ours(partition)
            if not (is_ours and is_readable(partition.topic)):
                found.append(each)
    if session.has_ids:
        for topic_id, same in groupby(found, key=lambda each: each.topic.topic_id):
            name = _name_of(topic_id, ctx)
            for each in same:
                each.partition = None if name is None else TopicPartition(name, each.want.partition)
    return found


def _rights(ctx: Context) -> Callable[[str], bool]:
    """Whether the client may read a topic, found out once for each."""
    if ctx.services.authorizer is None:
        return lambda _: True
    return cache(lambda topic: ctx.allows(Operation.READ, ResourceType.TOPIC, topic))


def _named(request: api.FetchRequest, ctx: Context) -> list[tuple[str | None, api.FetchTopic]]:
    if ctx.version < _IDS_SINCE:
        return [(topic.topic, topic) for topic in request.topics]
    return [(_name_of(topic.topic_id, ctx), topic) for topic in request.topics]


def _name_of(topic_id: UUID, ctx: Context) -> str | None:
    try:
        return ctx.services.topics.name_of(topic_id)
    except UnknownTopicId:
        return None


def _in_turn(wanted: Sequence[Wanted], first: TopicPartition | None) -> Iterable[Wanted]:
    """All, starting at ``first`` if it is there, and wrapping around."""
    start = next((n for n, each in enumerate(wanted) if each.partition == first), 0) if first else 0
    return chain(wanted[start:], wanted[:start])


def _read_partition(
    partition: TopicPartition, wanted: Wanted, left: int, ctx: Context, answer: _Answer
) -> api.PartitionData:
    want, wanted.settled = wanted.want, None
    try:
        if ctx.services.authorizer is not None or ctx.refusal is not None:
            ctx.demand(Operation.READ, ResourceType.TOPIC, partition.topic)
        epoch = max(ANY_EPOCH, want.current_leader_epoch)  # of a fetch, Kafka takes any negative one for none
        log = ctx.services.logs.readable(partition, answer.allowance, epoch)
        before = Settled.of(log) if answer.for_session and isinstance(log, Log) else None
        answer.ends.append((log, answer.end_of(log)))
        limit = want.partition_max_bytes
        if not answer.files_left:
            left = min(left, _COPIED_BYTES, answer.copies_left)
        at_least_one = answer.size_bytes == 0
        if not (left or at_least_one or ctx.version < BATCHES_SINCE):
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
        records: Entries | bytes = b""
        if len(piece):
            records = answer.take(piece)
        elif want.fetch_offset >= answer.ends[-1][1]:
            wanted.settled = before
        elif not at_least_one and want.fetch_offset < answer.end_of(log):
            answer.left_out = answer.left_out or partition
    except OffsetOutOfRange as e:
        # Kafka sends no range; with it a client can tell the user.
        return _failed(partition.partition, ctx.refused(e), log_start_offset=e.start, high_watermark=e.end)
    except KafkaError as e:
        return _failed(partition.partition, ctx.refused(e))
    return _partition_data(partition, log, records, piece.aborted if answer.committed else None)


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
