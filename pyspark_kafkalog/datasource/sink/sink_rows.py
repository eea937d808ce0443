"""A task's output: the written columns of Spark's rows, their topics, and the stored offsets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafkalog.client.transactions import PreparedTransaction
from pyspark_kafkalog.config.definition import nearest
from pyspark_kafkalog.datasource.options.option_definitions import SinkOptions, Unit
from pyspark_kafkalog.datasource.options.row_schema import COLUMN_TYPES
from pyspark_kafkalog.errors import InvalidConfig, KafkaError
from pyspark_kafkalog.producer.producer_batch import BulkDelivery
from pyspark_kafkalog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_kafkalog.producer.producer import Producer


class NullTopic(KafkaError):
    """Neither a row nor the option names the row's topic."""


def rows_by_topic(
    batch: pa.RecordBatch, columns: Sequence[str], topic: str | None, zone: str | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of ``batch`` by topic, in order; times without a zone are of ``zone``. Raises `NullTopic` or
    `InvalidConfig` before it yields anything.
    """
    sent = batch.select([name for name in columns if name != "topic"])
    at = sent.schema.get_field_index("timestamp")
    if at >= 0 and sent.schema.field(at).type.tz is None:
        sent = sent.set_column(at, "timestamp", _instants(sent.column(at), zone))
    if topic is not None:
        yield topic, sent
        return
    coded = batch.column("topic").dictionary_encode()
    if coded.null_count:
        raise NullTopic(
            "[KAFKA_NULL_TOPIC_IN_DATA] The Kafka message data sent to the producer contains a null topic. "
            "Use the `topic` option for setting a default topic."
        )
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], sent
        return
    import pyarrow.compute as pc

    # Stable: the rows of a topic keep their order.
    sent = sent.take(pc.array_sort_indices(coded.indices))
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(coded.indices).to_pylist()}
    start = 0
    for code in sorted(counts):
        yield names[code], sent.slice(start, counts[code])
        start += counts[code]


def _instants(local: pa.Array, zone: str | None) -> pa.Array:
    """As Spark casts TIMESTAMP_NTZ: a time that occurs twice is the first of the two, a skipped one has the
    offset before the gap.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if zone is None:
        raise InvalidConfig(
            "the column timestamp is a timestamp_ntz, and this session's time zone is not known: set "
            "spark.sql.session.timeZone, or CAST(timestamp AS TIMESTAMP_LTZ)"
        )
    near = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="earliest")
    zone_offset = pc.subtract(pc.local_timestamp(near).cast(pa.int64()), near.cast(pa.int64()))
    return pc.subtract(local.cast(pa.int64()), zone_offset).cast(pa.timestamp("us", "UTC"))


SINK_COLUMNS = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (COLUMN_TYPES["headers"],),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


def check_sink_schema(schema: StructType, options: SinkOptions) -> tuple[str, ...]:
    """The written columns of ``schema``, in its order; case-sensitive, as in Spark's own sink."""
    names = [field.name for field in schema.fields]
    if options.topic is None and "topic" not in names:
        raise InvalidConfig(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a "
            f"topic.{_perhaps('topic', names)}"
        )
    if "value" not in names:
        raise InvalidConfig(f"Required attribute 'value' not found.{_perhaps('value', names)}")
    if options.include_timestamp and "timestamp" not in names:
        raise InvalidConfig(
            f"includeTimestamp=true needs a column 'timestamp'.{_perhaps('timestamp', names)}"
        )
    left_out = {
        "topic": options.topic is not None,
        "headers": not options.include_headers,
        "timestamp": not options.include_timestamp,
    }
    written = tuple(name for name in names if name in SINK_COLUMNS and not left_out.get(name))
    if len(set(written)) < len(written):
        raise InvalidConfig(f"columns are written by name, so each may occur once; got {names}")
    for column in schema.fields:
        kind = column.dataType.simpleString()
        kind = "string" if kind.startswith("string collate") else kind
        if column.name in written and kind not in SINK_COLUMNS[column.name]:
            allowed = " or ".join(SINK_COLUMNS[column.name])
            raise InvalidConfig(
                f"{column.name} attribute unsupported type {kind}. {column.name} must be a(n) {allowed}"
            )
    return written


def _perhaps(wanted: str, names: list[str]) -> str:
    near = nearest(wanted, [name.lower() for name in names])
    meant = next((name for name in names if name.lower() == near), None)
    return f" Did you mean the column '{meant}'?" if meant else f" Columns: {', '.join(names)}"


Rows: TypeAlias = "Iterator[tuple[str, pa.RecordBatch]]"


class Written(NamedTuple):
    """Records written to one partition. Others' offsets may lie between; -1 if the broker gave none."""

    first_offset: int
    last_offset: int
    record_count: int

    def with_more(self, more: Written) -> Written:
        known = [n for n in (*self[:2], *more[:2]) if n >= 0]
        return Written(min(known, default=-1), max(known, default=-1), self.record_count + more.record_count)


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """A task's report to the driver: how many records it wrote to each partition, and their offsets."""

    partitions: Mapping[TopicPartition, Written] = field(default_factory=dict)
    transaction: PreparedTransaction | None = None
    """The transaction to commit; None for a write without transactions."""
    rows_there: int = 0
    """Rows not written because an earlier run of this batch committed them."""
    unit: Unit | None = None
    """The unit to write once; None for a write that is repeated each time."""

    @property
    def record_count(self) -> int:
        return sum(written.record_count for written in self.partitions.values())


def write_rows(producer: Producer, rows: Rows) -> dict[TopicPartition, Written]:
    """Returns the counts once all rows are acknowledged. Waits while the producer's buffer is full."""
    unacknowledged: deque[BulkDelivery] = deque()
    written: dict[TopicPartition, Written] = {}

    def count_first() -> None:
        for one in unacknowledged.popleft().result():
            where = TopicPartition(one.topic, one.partition)
            more = Written(one.first_offset, one.last_offset, one.record_count)
            written[where] = written[where].with_more(more) if where in written else more

    for topic, batch in rows:
        unacknowledged.append(producer.send_arrow(topic, batch))
        while unacknowledged and unacknowledged[0].done:
            count_first()
    producer.flush()
    while unacknowledged:
        count_first()
    return written


def unless_empty(rows: Rows) -> Rows | None:
    """``rows``, or None if there is none: then no broker need be asked."""
    for first in rows:
        if first[1].num_rows:
            return chain([first], rows)
    return None
