"""The logs that a listener's protocol can serve: those of one family as they are, others by a view if
there is one; whether another broker owns a partition; and how much work one request may ask of a thread that
serves others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from kafkalog_broker.cluster.ownership import Ownership, RegisteredElsewhere
from kafkalog_broker.log.aborted_transactions import AbortedTransaction
from kafkalog_broker.log.family import LogFamily
from kafkalog_broker.log.log import Log
from kafkalog_broker.log.retention import SegmentFacts
from kafkalog_broker.logs.manager import DirectoryContents, LogManager
from kafkalog_broker.network.reply import Region
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import ErrorCode, ServerError, UnknownTopicOrPartition
from pyspark_kafkalog.types import TopicPartition

LEADER_EPOCH = 0

_NOT_GIVEN = -1


def check_leader_epoch(partition: TopicPartition, epoch: int) -> None:
    """Refuse a client that knows of another leader than us; -1 is a client that does not say.
    Raises `ServerError`: UNKNOWN_LEADER_EPOCH above ours, FENCED_LEADER_EPOCH below.
    """
    if epoch in (_NOT_GIVEN, LEADER_EPOCH):
        return
    code = ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > LEADER_EPOCH else ErrorCode.FENCED_LEADER_EPOCH
    raise ServerError(code, f"{partition}: leader epoch {epoch}; the leader's is {LEADER_EPOCH}")


REQUEST_BYTES = 2 << 20
"""Read or made in Python for one request, half of it for its first partition: with messages of 100 bytes
some tens of ms for each MiB (benchmarks/view07.py).
"""


LONGEST_SECONDS = 60.0
"""No part of a request is begun later than that: clients wait for 10 to 30 s, and then send it again."""


class TimeAllowance:
    """*Not thread-safe: one request's.* What a request of many parts may take, turns of others included."""

    __slots__ = ("_clock", "_deadline")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + LONGEST_SECONDS

    def check(self) -> None:
        """Before a part is begun: raises `ServerError` REQUEST_TIMED_OUT where the request took too long."""
        if self._clock.monotonic() > self._deadline:
            raise ServerError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"not begun within {LONGEST_SECONDS:g} s, for the parts before it; send smaller requests",
            )


class Allowance:
    """*Not thread-safe: one request's.* What may still be read and made for it, in bytes.

    What is begun is finished, so it may be overdrawn by one message set. Bytes that the kernel sends without
    our reading them cost nothing.
    """

    __slots__ = ("_left", "_size", "_whole", "short")

    def __init__(self, size_bytes: int = REQUEST_BYTES, whole: Allowance | None = None) -> None:
        self._left = self._size = size_bytes
        self._whole = whole
        self.short = False
        """Whether one of its parts was spent, or called `tell_of_more`: there may be more than was found."""

    @property
    def spent(self) -> bool:
        """Whether there is nothing left: the client is to be answered with what there is, and asks again."""
        return self._left <= 0

    @property
    def exhausted(self) -> bool:
        """Whether the whole of it was overdrawn by as much as it was: nothing more is to be begun."""
        whole = self if self._whole is None else self._whole
        return whole._left <= -whole._size

    def part(self) -> Allowance:
        """Half of what is left, for one partition: so the first one does not keep all others from theirs."""
        return Allowance(self._left // 2, self)

    def tell_of_more(self) -> None:
        """There is more than this answer is given: the client is to have it now, and asks again."""
        (self if self._whole is None else self._whole).short = True

    def take(self, size_bytes: int) -> None:
        """So many bytes were read or made."""
        self._left -= size_bytes
        if self._whole is not None:
            self._whole.take(size_bytes)
            self._whole.short |= self.spent


class Entries(Region, Protocol):
    """What is read of a log: whole entries."""

    @property
    def aborted(self) -> Sequence[AbortedTransaction]:
        """Transactions whose records in them a reader of committed data must leave out."""

    @property
    def newest_magic(self) -> int | None:
        """None of them is of a later format than this; None where that is not known."""

    def learn(self, magic: int, size: int) -> None:
        """Let it be known that none in the first ``size`` bytes is of a later format than ``magic``."""

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position`` on, fewer at the end. Raises `OSError`."""

    def cut(self, size: int) -> None:
        """Keep the first ``size`` bytes only; nothing has been sent yet."""


class ReadableLog(Protocol):
    """What today's handlers read of a log: a `Log`, or the view of one. `Log` documents each of these."""

    @property
    def start_offset(self) -> int:
        """First offset that can be read."""

    @property
    def readable_end(self) -> int:
        """Where every reader stops: the high watermark."""

    @property
    def last_stable_offset(self) -> int:
        """Where a reader of committed data stops."""

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, committed_only: bool = False
    ) -> Entries:
        """Whole batches from the one with ``offset`` on. The caller closes the region."""

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """A time not before ``timestamp_ms`` and the offset from which nothing so late is missed."""

    def max_timestamp(self) -> tuple[int, int] | None:
        """The largest timestamp of all records and the offset of the first that has it."""

    def facts(self) -> list[SegmentFacts]:
        """What is known of each segment, oldest first."""


View = Callable[[Log, Allowance], ReadableLog]
"""Makes a log of another family readable, within what one request may cost."""

Views = Mapping[str, View]
"""By the generation of the family."""

NO_VIEWS: Views = MappingProxyType({})


class LogAccess:
    """*Thread-safe: it changes nothing.* The log manager's logs, as a listener's handlers may see them.

    What is appended goes as it is, so a topic of another family is refused. What is read of it goes through
    the family's view, if there is one. With an ``ownership`` partitions of another broker are refused.
    """

    def __init__(
        self, logs: LogManager, family: LogFamily, views: Views = NO_VIEWS, ownership: Ownership | None = None
    ) -> None:
        self._logs = logs
        self._ownership = ownership
        self._views = views
        self.family = family

    def log(self, partition: TopicPartition) -> Log:
        """The log of a partition, whose bytes are the protocol's own.

        A topic of another family is UNSUPPORTED_FOR_MESSAGE_FORMAT; raises `RegisteredElsewhere` as well.
        """
        log = self._find(partition)
        if log.family is not self.family:
            raise self._foreign(log)
        self._check(partition)
        return log

    def check_writable(self, partition: TopicPartition) -> None:
        """Refuse a partition that the protocol's producers could not write to: here, or at its owner."""
        try:
            self.log(partition)
        except RegisteredElsewhere:
            if self._ownership is None or not self._ownership.known:
                raise

    def readable(self, partition: TopicPartition, allowance: Allowance) -> ReadableLog:
        """A partition's log for readers, who may cause work up to a part of the request's ``allowance``.

        A topic of another family is refused only where that has no view.
        """
        log = self._find(partition)
        if log.family is self.family:
            self._check(partition)
            return log
        view = self._views.get(log.family.generation)
        if view is None:
            raise self._foreign(log)
        return view(log, allowance.part())

    def delete_records(self, partition: TopicPartition, offset: int) -> int:
        """As `LogManager.delete_records`, of a log that `log` gives."""
        self.log(partition)
        return self._logs.delete_records(partition, offset)

    def check_exists(self, partition: TopicPartition) -> None:
        """Refuse a partition that is not there, or whose disk is not; any family will do, and any owner."""
        topic = None if self._ownership is None else self._ownership.topic(partition.topic)
        if topic is None or partition.partition not in topic.stored.partitions:
            self._logs.log(partition)

    def directories(self, wanted: set[TopicPartition] | None) -> list[DirectoryContents]:
        """The data directories with those of the partitions ``wanted`` that they have; None is all."""
        found = self._logs.directories()
        if wanted is None:
            return found
        return [
            replace(each, sizes={p: size for p, size in each.sizes.items() if p in wanted}) for each in found
        ]

    def files_per_answer(self) -> int:
        """Files that one answer may keep open now: `LogManager.files_per_answer`."""
        return self._logs.files_per_answer()

    def _find(self, partition: TopicPartition) -> Log:
        """The log, of any family. Raises `RegisteredElsewhere` where the partition is another broker's."""
        try:
            return self._logs.log(partition)
        except UnknownTopicOrPartition:
            ownership = self._ownership
            topic = None if ownership is None else ownership.topic(partition.topic)
            if ownership is not None and topic is not None and partition.partition in topic.stored.partitions:
                ownership.check(partition)
            raise

    def _check(self, partition: TopicPartition) -> None:
        if self._ownership is not None:
            self._ownership.check(partition)

    def _foreign(self, log: Log) -> ServerError:
        return ServerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"topic {log.topic_partition.topic!r} holds messages of generation {log.family.generation};"
            f" this listener speaks the protocol of {self.family.generation}",
        )
