"""The logs that a listener's protocol can serve, directly or through a view of another family; ownership
checks; and limits on the work of one request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

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

ANY_EPOCH = -1

REQUEST_BYTES = 2 << 20
"""Bytes that one request may have read or made in Python, half of them for its first partition: each MiB of
100-byte messages takes tens of ms (benchmarks/view07.py).
"""


LONGEST_SECONDS = 60.0
"""No part of a request starts later than this: clients time out after 10 to 30 s and send it again."""


class TimeAllowance:
    """*Not thread-safe: one request's.* Time limit of a request of many parts, including waits for others."""

    __slots__ = ("_clock", "_deadline")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + LONGEST_SECONDS

    def check(self) -> None:
        if self._clock.monotonic() > self._deadline:
            raise ServerError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"not begun within {LONGEST_SECONDS:g} s, for the parts before it; send smaller requests",
            )


class Allowance:
    """*Not thread-safe.* Bytes that one request may still read and make; one message set may overdraw it."""

    __slots__ = ("_left", "_size", "_whole", "short")

    def __init__(self, size_bytes: int = REQUEST_BYTES, whole: Allowance | None = None) -> None:
        self._left = self._size = size_bytes
        self._whole = whole
        self.short = False
        """Whether a part was spent or called `tell_of_more`, so that there may be more than was returned."""

    @property
    def spent(self) -> bool:
        return self._left <= 0

    @property
    def exhausted(self) -> bool:
        """Whether the whole allowance was used twice: start nothing more."""
        whole = self if self._whole is None else self._whole
        return whole._left <= -whole._size

    def part(self) -> Allowance:
        """Half of what is left, for one partition, so that the first leaves some to the others."""
        return Allowance(self._left // 2, self)

    def tell_of_more(self) -> None:
        """Note that there is more than this answer holds: send it now; the client asks again."""
        (self if self._whole is None else self._whole).short = True

    def take(self, size_bytes: int) -> None:
        self._left -= size_bytes
        if self._whole is not None:
            self._whole.take(size_bytes)
            self._whole.short |= self.spent


class Entries(Region, Protocol):
    """Whole entries read from a log."""

    @property
    def aborted(self) -> Sequence[AbortedTransaction]:
        """Transactions whose records a reader of committed data must skip."""

    @property
    def newest_magic(self) -> int | None:
        """No entry has a later format than this magic; None if unknown."""

    def learn(self, magic: int, size: int) -> None:
        """Note that no entry in the first ``size`` bytes has a later format than ``magic``."""

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``, fewer at the end. Raises `OSError`."""

    def cut(self, size: int) -> None:
        """Keep the first ``size`` bytes only; call it before anything is sent."""


class ReadableLog(Protocol):
    """What handlers read of a log: a `Log`, or a view of one. `Log` documents the methods."""

    @property
    def leader_epoch(self) -> int: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def readable_end(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, committed_only: bool = False
    ) -> Entries:
        """Whole batches from the one that contains ``offset``. The caller closes the region."""

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """A time not before ``timestamp_ms``, and an offset at or before every record from then on."""

    def max_timestamp(self) -> tuple[int, int] | None: ...

    def facts(self) -> list[SegmentFacts]: ...


View = Callable[[Log, Allowance], ReadableLog]
"""Makes a log of another family readable, within an allowance."""

Views = Mapping[str, View]


@dataclass(eq=False)
class LogAccess:
    """*Thread-safe: it changes nothing.* The logs as a listener's handlers may use them: none of other
    brokers, no appends to topics of another family, whose reads go through the family's view, if any.
    """

    logs: LogManager
    family: LogFamily
    views: Views = field(default_factory=dict)
    ownership: Ownership | None = None

    def log(self, partition: TopicPartition) -> Log:
        """Raises `ServerError` UNSUPPORTED_FOR_MESSAGE_FORMAT, another family; `RegisteredElsewhere`."""
        log = self._find(partition)
        if log.family is not self.family:
            raise self._foreign(log)
        self._check(partition)
        return log

    def check_writable(self, partition: TopicPartition) -> None:
        """Refuse a partition to which the protocol's producers cannot write, here or at its owner."""
        try:
            self.log(partition)
        except RegisteredElsewhere:
            if self.ownership is None or not self.ownership.known:
                raise

    def readable(
        self, partition: TopicPartition, allowance: Allowance, leader_epoch: int = ANY_EPOCH
    ) -> ReadableLog:
        """Within a part of the request's ``allowance``; a log of another family through its view. Raises
        `ServerError` FENCED_LEADER_EPOCH if ``leader_epoch`` is below ours, UNKNOWN_LEADER_EPOCH if above.
        """
        log = self._find(partition)
        view = None
        if log.family is self.family:
            self._check(partition)
        elif (view := self.views.get(log.family.generation)) is None:
            raise self._foreign(log)
        if leader_epoch not in (ANY_EPOCH, log.leader_epoch):
            is_newer = leader_epoch > log.leader_epoch
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if is_newer else ErrorCode.FENCED_LEADER_EPOCH
            raise ServerError(
                code, f"{partition}: leader epoch {leader_epoch}; the leader's is {log.leader_epoch}"
            )
        return log if view is None else view(log, allowance.part())

    def delete_records(self, partition: TopicPartition, offset: int) -> int:
        self.log(partition)
        return self.logs.delete_records(partition, offset)

    def check_exists(self, partition: TopicPartition) -> None:
        """Refuse a partition that does not exist or is offline, whatever its family or owner."""
        topic = None if self.ownership is None else self.ownership.topic(partition.topic)
        if topic is None or partition.partition not in topic.stored.partitions:
            self.logs.log(partition)

    def move(self, partition: TopicPartition, path: str) -> None:
        """As `LogManager.move`; of another broker's partition raises `RegisteredElsewhere`."""
        try:
            self.logs.move(partition, path)
        except UnknownTopicOrPartition:
            self._find(partition)
            raise

    def directories(self, wanted: set[TopicPartition] | None) -> list[DirectoryContents]:
        """The data directories with the sizes of their partitions, only the ``wanted`` ones unless None."""
        found = self.logs.directories()
        if wanted is None:
            return found
        return [
            replace(
                each,
                sizes={p: size for p, size in each.sizes.items() if p in wanted},
                futures={p: future for p, future in each.futures.items() if p in wanted},
            )
            for each in found
        ]

    def files_per_answer(self) -> int:
        return self.logs.open_files.share()

    def is_foreign(self, partition: TopicPartition) -> bool:
        log = self.logs.logs.get(partition)
        return log is not None and log.family is not self.family

    def _find(self, partition: TopicPartition) -> Log:
        try:
            return self.logs.logs.get(partition) or self.logs.log(partition)
        except UnknownTopicOrPartition:
            ownership = self.ownership
            topic = None if ownership is None else ownership.topic(partition.topic)
            if ownership is not None and topic is not None and partition.partition in topic.stored.partitions:
                ownership.check(partition)
            raise

    def _check(self, partition: TopicPartition) -> None:
        if self.ownership is not None:
            self.ownership.check(partition)

    def _foreign(self, log: Log) -> ServerError:
        return ServerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"topic {log.topic_partition.topic!r} holds messages of generation {log.family.generation};"
            f" this listener speaks the protocol of {self.family.generation}",
        )
