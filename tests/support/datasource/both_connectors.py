"""Spark's own Kafka connector and ours, asked for the same in one session, and what each answers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import pytest

from pyspark_kafkalog.client.admin import NewTopic, create_topics
from tests.support.foreign.foreign_clients import Confluent
from tests.support.foreign.foreign_face import CODECS, WAIT_SECONDS, Message
from tests.support.until import until

THEIRS, OURS = "kafka", "kafkalog"
"""Names of the two as Spark knows them."""

BROKERS = ("Apache Kafka", "the bundled broker")
"""Where the two are compared."""

at_kafka, at_our_broker = (
    pytest.mark.parametrize("servers_of_each", [name], indirect=True) for name in BROKERS
)
"""For tests of what the connectors make of a broker's answers: those of one broker are enough."""

_ROW = (
    "spark_partition_id() task", "key", "value", "topic", "partition", "offset",
    "unix_micros(timestamp) timestamp", "timestampType",
)  # fmt: skip
_POLL_MS = "20000"

Options = Mapping[str, object]


class Row(NamedTuple):
    """One row of either; the time in microseconds."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...] | str | None = "not asked for"


@dataclass(frozen=True)
class Answer:
    """What one read gave: the rows of each task that had some, in their order, and how many tasks ran."""

    tasks: list[list[Row]]
    task_count: int

    @property
    def rows(self) -> list[Row]:
        """All rows, by topic, partition and offset."""
        return [row for task in self.tasks for row in task]

    @property
    def ranges(self) -> list[tuple[str, int, int, int]]:
        """Topic, partition, first and last offset of each task with rows."""
        return [(t[0].topic, t[0].partition, t[0].offset, t[-1].offset) for t in self.tasks]


def read(spark: Any, source: str, servers: str, options: Options) -> Answer:
    """A batch read."""
    frame = _columns(load(spark, source, servers, options))
    tasks = _tasks(frame)
    # Of the plan that has just run: `frame.rdd` would make another.
    return Answer(tasks, frame._jdf.queryExecution().executedPlan().execute().getNumPartitions())


def rows_of(frame: Any) -> list[list[Row]]:
    """The rows of each task that has some, the tasks in the order of topic, partition and offset."""
    return _tasks(_columns(frame))


def _columns(frame: Any) -> Any:
    return frame.selectExpr(*_ROW, *(["headers"] if "headers" in frame.columns else []))


def _tasks(frame: Any) -> list[list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in frame.collect():
        task, *values = row
        found.setdefault(task, []).append(_row(values))
    return sorted(found.values(), key=lambda rows: (rows[0].topic, rows[0].partition, rows[0].offset))


def load(spark: Any, source: str, servers: str, options: Options) -> Any:
    """The DataFrame."""
    return spark.read.format(source).options(**_given(servers, options)).load()


def load_stream(spark: Any, source: str, servers: str, options: Options) -> Any:
    """The streaming DataFrame."""
    return spark.readStream.format(source).options(**_given(servers, options)).load()


def _given(servers: str, options: Options) -> dict[str, Any]:
    """With what every read here says, unless it says None: one that waits in vain shall fail soon."""
    shared = {"kafka.bootstrap.servers": servers, "kafkaConsumer.pollTimeoutMs": _POLL_MS}
    return {name: value for name, value in {**shared, **options}.items() if value is not None}


def _row(values: Sequence[Any]) -> Row:
    key, value, *others = values
    if len(others) == 6 and others[5] is not None:
        others[5] = tuple((header.key, _bytes(header.value)) for header in others[5])
    return Row(_bytes(key), _bytes(value), *others)


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


def failure(spark: Any, source: str, servers: str, options: Options) -> str:
    """The text of the error that a read ends with. Raises `AssertionError` if it ends well."""
    return _refusal(source, _outcome(spark, source, servers, options), options)


def _refusal(source: str, found: Answer | str, options: Options) -> str:
    assert isinstance(found, str), f"{source} reads {len(found.rows)} rows with {options}"
    return found


def _outcome(spark: Any, source: str, servers: str, options: Options) -> Answer | str:
    """What was read, or the text of the error."""
    try:
        return read(spark, source, servers, options)
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def brief(text: str) -> str:
    """An error without the places it came through."""
    lines = [line for line in text.splitlines() if not re.match(r"\s+(at |File |\^)", line)]
    return "\n".join(lines)[:1500]


def same_answers(theirs: Answer, ours: Answer) -> None:
    """The same rows, in the same tasks."""
    assert ours.rows == theirs.rows
    assert ours.tasks == theirs.tasks, (ours.ranges, theirs.ranges)
    # Where there is nothing to read Spark gives a source in Python one task all the same; of a read that is
    # split, partitions that are empty have one, since Spark's connector would look for them again.
    assert ours.task_count - theirs.task_count in (0, 1)


class Both:
    """*Not thread-safe.* The two of them at one cluster."""

    def __init__(self, spark: Any, servers: str) -> None:
        self.spark, self.servers = spark, servers

    def read(self, **options: object) -> Answer:
        """What both read: the same rows, in the same tasks."""
        theirs, ours = self.each(**options)
        same_answers(theirs, ours)
        return ours

    def each(self, **options: object) -> tuple[Answer, Answer]:
        """What theirs reads and what ours reads, whether it is the same or not."""
        with ThreadPoolExecutor(1) as aside:
            theirs = aside.submit(read, self.spark, THEIRS, self.servers, options)
            ours = read(self.spark, OURS, self.servers, options)
            return theirs.result(), ours

    def outcomes(self, **options: object) -> tuple[Answer | str, Answer | str]:
        """As `each`, but the text of the error where one fails."""
        with ThreadPoolExecutor(1) as aside:
            theirs = aside.submit(_outcome, self.spark, THEIRS, self.servers, options)
            ours = _outcome(self.spark, OURS, self.servers, options)
            return theirs.result(), ours

    def fail(self, words: str, **options: object) -> None:
        """Have both fail, with words of this regular expression in both texts."""
        for source, found in zip((THEIRS, OURS), self.outcomes(**options), strict=True):
            text = _refusal(source, found, options)
            assert re.search(words, text), f"{source}: {brief(text)}"


_Topic = TypeVar("_Topic", bound="ParityTopic")


class ParityTopic:
    """A topic that librdkafka fills, so that neither connector reads what its own side wrote."""

    def __init__(self, servers: str, name: str) -> None:
        self.servers, self.name = servers, name
        self._client = Confluent()
        self._transactions = itertools.count()
        self._open: list[Any] = []

    @classmethod
    def make(
        cls: type[_Topic], servers: str, name: str, partitions: int, settings: Mapping[str, str] | None = None
    ) -> _Topic:
        """Make it, with these properties of topics; it is there when this returns."""
        topic = cls(servers, name)
        create_topics(servers, [NewTopic(name, partitions, configs=settings or {})])
        topic.await_partitions(partitions)
        return topic

    def await_partitions(self, count: int) -> None:
        """Wait until the broker leads what there is: its controller says so a moment before."""
        until(lambda: all(map(self._is_led, range(count))))

    def await_gone(self) -> None:
        """Wait until a deleted topic is no longer there."""
        until(lambda: self.name not in self._client.topics(self.servers))

    def _is_led(self, partition: int) -> bool:
        from confluent_kafka import KafkaException

        try:
            self._client.ends(self.servers, self.name, partition)
        except KafkaException:
            return False
        return True

    def add(self, partition: int, messages: Sequence[Message], codec: str = CODECS[0]) -> None:
        """Records of one producer, in batches of up to fifty."""
        self._client.produce(self.servers, self.name, partition, messages, codec, idempotent=False)

    def add_transactions(self, *parts: tuple[int, Sequence[Message], bool], codec: str = CODECS[0]) -> None:
        """A transaction for each: partition, records, and whether it is committed or aborted."""
        out = self._transactional(codec)
        for partition, messages, committed in parts:
            self._begin(out, partition, messages)
            end = out.commit_transaction if committed else out.abort_transaction
            end(WAIT_SECONDS)

    def leave_open(self, partition: int, messages: Sequence[Message]) -> None:
        """A transaction that is neither committed nor aborted until `close`."""
        out = self._transactional("none")
        self._begin(out, partition, messages)
        self._open.append(out)

    def close(self) -> None:
        """Abort what was left open."""
        while self._open:
            self._open.pop().abort_transaction(WAIT_SECONDS)

    def _transactional(self, codec: str) -> Any:
        from confluent_kafka import Producer

        identity = f"{self.name}-{next(self._transactions)}"
        out = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": identity, "compression.type": codec}
        )
        out.init_transactions(WAIT_SECONDS)
        return out

    def _begin(self, out: Any, partition: int, messages: Sequence[Message]) -> None:
        out.begin_transaction()
        for m in messages:
            headers = list(m.headers) or None
            out.produce(self.name, m.value, m.key, partition, timestamp=m.timestamp, headers=headers)
        assert out.flush(WAIT_SECONDS) == 0

    def delete_before(self, **offsets: int) -> None:
        """Have the broker forget what is before these offsets: ``delete_before(p0=3)``."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        places = [TopicPartition(self.name, int(name[1:]), offset) for name, offset in offsets.items()]
        admin = AdminClient({"bootstrap.servers": self.servers})
        for done in admin.delete_records(places).values():
            done.result(WAIT_SECONDS)

    def await_compaction(self, partition: int, first: Message) -> None:
        """Wait until the record that was the first is gone."""
        until(lambda: self._client.consume(self.servers, self.name, partition, 0, 1) != [first])

    def end(self, partition: int) -> int:
        """The offset that the next record gets; while a transaction is open, where that begins."""
        return self._client.ends(self.servers, self.name, partition)[1]

    def offsets(self, **by_partition: int) -> str:
        """JSON of offsets or times: ``topic.offsets(p0=3, p1=-1)``."""
        return json.dumps({self.name: {name[1:]: offset for name, offset in by_partition.items()}})
