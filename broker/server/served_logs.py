"""The logs that one protocol can serve: those of one family as they are, those of others by a view if any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from broker.log.family import LogFamily
from broker.log.log import Log
from broker.log.retention import SegmentFacts
from broker.network.reply import Region
from broker.server.leadership import Ownership
from broker.server.request_limits import Allowance
from broker.store.manager import LogManager
from pyspark_kafkalog.errors import ErrorCode, ServerError
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition


class Entries(Region, Protocol):
    """What is read of a log: whole entries."""

    @property
    def newest_magic(self) -> int | None:
        """None of them is of a later format than this; None where that is not known."""
        ...

    def learn(self, magic: int, size: int) -> None:
        """Let it be known that none in the first ``size`` bytes is of a later format than ``magic``."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position`` on, fewer at the end. Raises `OSError`."""
        ...

    def cut(self, size: int) -> None:
        """Keep the first ``size`` bytes only; nothing has been sent yet."""
        ...


class ReadableLog(Protocol):
    """What today's handlers read of a log: a `Log`, or the view of one. `Log` documents each of these."""

    @property
    def start_offset(self) -> int:
        """First offset that can be read."""
        ...

    @property
    def readable_end(self) -> int:
        """Where every reader stops: the high watermark."""
        ...

    @property
    def last_stable_offset(self) -> int:
        """Where a reader of committed data stops."""
        ...

    def read_in_steps(
        self, offset: int, max_bytes: int, *, at_least_one: bool, committed_only: bool = False
    ) -> Steps[Entries]:
        """Whole batches from the one with ``offset`` on. The caller closes the region."""
        ...

    def offset_for_timestamp_in_steps(self, timestamp_ms: int) -> Steps[tuple[int, int] | None]:
        """A time not before ``timestamp_ms`` and the offset from which nothing so late is missed."""
        ...

    def max_timestamp_in_steps(self) -> Steps[tuple[int, int] | None]:
        """The largest timestamp of all records and the offset of the first that has it."""
        ...

    def facts(self) -> list[SegmentFacts]:
        """What is known of each segment, oldest first."""
        ...


View = Callable[[Log, Allowance], ReadableLog]
"""Makes a log of another family readable, within what one request may cost."""

Views = Mapping[str, View]
"""By the generation of the family."""

NO_VIEWS: Views = MappingProxyType({})


class ServedLogs:
    """*Thread-safe: it changes nothing.* The log manager's logs, as a listener's handlers may see them.

    What is appended goes as it is, so a topic of another family is refused. What is read of it goes through
    the family's view, if there is one. With an ``ownership`` partitions of another broker are refused.
    """

    def __init__(
        self,
        logs: LogManager,
        family: LogFamily,
        views: Views = NO_VIEWS,
        ownership: Ownership | None = None,
    ) -> None:
        self._logs = logs
        self._ownership = ownership
        self._views = views
        self.family = family

    def log(self, partition: TopicPartition) -> Log:
        """The log of a partition, whose bytes are the protocol's own.

        Raises:
            UnknownTopicOrPartition, StorageError: as `LogManager.log`.
            ServerError: UNSUPPORTED_FOR_MESSAGE_FORMAT for a topic of another family.
            RegisteredElsewhere: another broker has the partition.
        """
        log = self._logs.log(partition)
        if log.family is not self.family:
            raise self._foreign(log)
        if self._ownership is not None:
            self._ownership.check(partition)
        return log

    def readable(self, partition: TopicPartition, allowance: Allowance) -> ReadableLog:
        """A partition's log for readers, who may cause work up to a part of the request's ``allowance``.

        Raises:
            UnknownTopicOrPartition, StorageError: as `LogManager.log`.
            ServerError: UNSUPPORTED_FOR_MESSAGE_FORMAT for a topic of a family without a view.
            RegisteredElsewhere: another broker has the partition.
        """
        log = self._logs.log(partition)
        if log.family is self.family:
            if self._ownership is not None:
                self._ownership.check(partition)
            return log
        view = self._views.get(log.family.generation)
        if view is None:
            raise self._foreign(log)
        return view(log, allowance.part())

    def check_exists(self, partition: TopicPartition) -> None:
        """Refuse a partition that is not there, or whose disk is not; any family will do. Raises as `log`."""
        self._logs.log(partition)

    def files_per_answer(self) -> int:
        """Files that one answer may keep open now: `LogManager.files_per_answer`."""
        return self._logs.files_per_answer()

    def _foreign(self, log: Log) -> ServerError:
        return ServerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"topic {log.topic_partition.topic!r} holds messages of generation {log.family.generation};"
            f" this listener speaks the protocol of {self.family.generation}",
        )
