"""Every option of Spark's reads and writes, from which errors, defaults and the tables of docs/datasource.md
come. `read_options` and `sink_options` parse them; other ``kafka.*`` properties go to the client.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pyspark_kafkalog.config.classic_config import KAFKA, ZOOKEEPER, Source07Config
from pyspark_kafkalog.config.client_config import ClientConfig, ConsumerConfig
from pyspark_kafkalog.config.definition import (
    Check,
    Config,
    Property,
    between,
    configuration,
    describe,
    nearest,
    not_negative,
    one_of,
    positive,
    prop,
    prop_of,
    unlisted,
)
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.config.zookeeper_config import ZooKeeperConfig
from pyspark_kafkalog.datasource.options.row_schema import column_names, parse_columns
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    Assign,
    GlobalTimestamp,
    OffsetLimit,
    PartitionTimestamps,
    StartLimit,
    Subscribe,
    SubscribePattern,
    Subscription,
    parse_assign,
    parse_offsets,
    parse_partition_timestamps,
    parse_pattern,
    parse_start,
    parse_timestamp,
    parse_topics,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.history import HistoryRange, parse_as_of, parse_between
from pyspark_kafkalog.security.references import look_also
from pyspark_kafkalog.types import PROTOCOL_07, PROTOCOL_08

BATCH, STREAM, LOAD, SINK = "batch", "stream", "load", "sink"
READ = (BATCH, STREAM)
ALL_RECORDS = "read_uncommitted"

_UNITS_MS = {
    "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip


def _word(text: str) -> str:
    return text.strip().lower()


def _text_or_none(text: str) -> str | None:
    return text.strip() or None


def _is_second(first: str, second: str, text: str) -> bool:
    if _word(text) not in (first, second):
        raise ValueError
    return _word(text) == second


def _either(first: str, second: str, allowed: str = "") -> dict[str, Any]:
    check = Check(allowed or f"one of {first}, {second}", lambda value: isinstance(value, bool))
    return {"kind": partial(_is_second, first, second), "check": check}


_flag = _either("false", "true", "one of true, false")


def _duration_ms(text: str) -> int:
    """A time as Spark writes it, ``100ms``, ``15m``, ``2h``; a number alone is milliseconds."""
    found = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", _word(text))
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise ValueError
    return int(int(found[1]) * _UNITS_MS[found[2] or "ms"])


_sink_id = Check(
    "up to 200 letters, digits and '.', '_', '-'",
    lambda value: value is None or re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value) is not None,
)
_stream_name = Check(
    "up to 200 letters, digits, '.', '_' and '-'",
    lambda value: not value or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", value) is not None,
)
_load_run = Check(
    "up to 64 letters, digits and '-', and is given with loadPlan only",
    lambda value: re.fullmatch(r"[A-Za-z0-9-]{0,64}", value) is not None,
)
_plan_number = Check("the number of a plan, 1 to 99999999", between(1, 99_999_999).test)
_COUNT = "must be positive"
_NUMBER = "is a whole number"
_SERVERS_DOC = "Brokers to connect to first, `host:port,host:port`."


class LoadOptions(msgspec.Struct, frozen=True):
    name: str
    offsets_path: str
    """An absolute path."""
    commit: str
    """``none``, ``stage`` or ``group``."""
    on_pending: str
    """``replay``, ``fail`` or ``discard``."""
    on_recreated: str
    """``fail``, ``earliest`` or ``skip``."""
    plan: int | None
    """The plan to read, which another process commits."""
    run: str = ""
    """The run that checks the tasks' marks, or ""."""
    history: HistoryRange | None = None
    """The loads to read again; None for the next load."""
    from_commit: bool = False
    """The read begins at the end of one of the load's commits; that is no load either."""
    max_records: int | None = None
    """Limit of offsets in a new plan, in all its partitions together."""
    max_bytes: int | None = None
    """Limit of its bytes of log, estimated from samples."""
    token: str = ""
    """The listener that commits in place of the last task, or ""."""

    @property
    def looks_back(self) -> bool:
        """Whether this reads earlier loads again, and is no load itself."""
        return self.from_commit or self.history is not None

    @property
    def commits(self) -> bool:
        return self.commit != "none"


@configuration
class SourceOptions(Config):
    """The options of any read, batch or stream. Times are in milliseconds."""

    servers: str | None = prop(
        "kafka.bootstrap.servers", None, _text_or_none, use=READ, shown="required", doc=_SERVERS_DOC
    )
    protocol: str = prop(
        "protocol", PROTOCOL_08, _word, check=one_of(PROTOCOL_08, PROTOCOL_07), use=READ,
        doc="`0.8` is today's wire, since Kafka 0.8. `0.7` reads [topics of Kafka "
            "0.7](kafka07.md#reading-with-spark), with `zookeeper.connect` or `broker.list` instead of the "
            "brokers above.",
    )  # fmt: skip
    zookeeper_connect: str | None = prop(
        "zookeeper.connect", None, use=READ,
        doc="ZooKeeper of 0.7's brokers, or the one that keeps offsets with `offsetStore=zookeeper`: "
            "`host:port,host:port/chroot`.",
    )  # fmt: skip
    zk_connect: str | None = prop("zk.connect", None, use=READ, doc="0.7's name for `zookeeper.connect`.")
    broker_list: str | None = prop(
        "broker.list", None, use=READ,
        doc="0.7's brokers, without ZooKeeper: `id:host:port,id:host:port`.",
    )  # fmt: skip
    assign: Assign | None = prop(
        "assign", None, parse_assign, use=READ,
        doc='Partitions to read, `{"topicA":[0,1]}`. Give exactly one of this and the next two.',
    )  # fmt: skip
    subscribe: Subscribe | None = prop(
        "subscribe", None, parse_topics, use=READ, doc="Topics to read, separated by commas."
    )
    subscribe_pattern: SubscribePattern | None = prop(
        "subscribePattern", None, parse_pattern, use=READ,
        doc="Regular expression; topics whose whole name matches are read.",
    )  # fmt: skip
    starting_offsets: StartLimit = prop(
        "startingOffsets", "earliest", partial(parse_start, "startingOffsets"), use=READ,
        doc="Where to start: `earliest`; `latest` (streams only, and their default); JSON "
            '`{"topicA":{"0":23,"1":-2},"topicB":"earliest"}` for every partition or its topic (-2: '
            "earliest, -1: latest); `group`, the committed offsets of `kafka.group.id`; `file:<directory>`, "
            "the offsets in its `part-*` files. With a load name: where the first load starts, or "
            "`commit:37`: a read from the end of load 37 that is not a load itself.",
    )  # fmt: skip
    ending_offsets: OffsetLimit = prop(
        "endingOffsets", "latest", partial(parse_offsets, "endingOffsets"), use=(BATCH,),
        doc="Where to end, exclusive: `latest`, or JSON as above (-1: latest).",
    )  # fmt: skip
    starting_timestamps: PartitionTimestamps | None = prop(
        "startingOffsetsByTimestamp", None,
        partial(parse_partition_timestamps, "startingOffsetsByTimestamp"), use=READ,
        doc="Start at the first record at or after this time in milliseconds, "
            '`{"topicA":{"0":1700000000000}}`. Overrides `startingOffsets`.',
    )  # fmt: skip
    ending_timestamps: PartitionTimestamps | None = prop(
        "endingOffsetsByTimestamp", None,
        partial(parse_partition_timestamps, "endingOffsetsByTimestamp"), use=(BATCH,),
        doc="End before the first record at or after this time, or at the end if there is none. Overrides "
            "`endingOffsets`.",
    )  # fmt: skip
    starting_timestamp: GlobalTimestamp | None = prop(
        "startingTimestamp", None, partial(parse_timestamp, "startingTimestamp"), use=READ,
        doc="The same for every partition, one number in milliseconds. Overrides the other two.",
    )  # fmt: skip
    ending_timestamp: GlobalTimestamp | None = prop(
        "endingTimestamp", None, partial(parse_timestamp, "endingTimestamp"), use=(BATCH,),
        doc="The same for every partition. Overrides the other two.",
    )  # fmt: skip
    missing_is_latest: bool = prop(
        "startingOffsetsByTimestampStrategy", "error", **_either("error", "latest"), use=READ,
        doc="For partitions without a record that late: `error`, or `latest` to start at the end.",
    )  # fmt: skip
    min_partitions: int | None = prop(
        "minPartitions", None, int, check=positive, wording=_COUNT, use=READ,
        doc="Split large ranges into about this many tasks in total.",
    )  # fmt: skip
    max_records: int | None = prop(
        "maxRecordsPerPartition", None, int, check=positive, wording=_COUNT, use=READ,
        doc="Most offsets that a task reads.",
    )  # fmt: skip
    max_bytes: int | None = prop(
        "maxBytesPerPartition", None, int, check=positive, wording=_COUNT, use=READ,
        doc="About the most bytes of stored log that a task reads, estimated from samples of up to 16 "
            "places of a partition. Applied before the two above.",
    )  # fmt: skip
    per_task: int = prop(
        "topicPartitionsPerTask", 1, int, check=positive, wording=_COUNT, use=READ,
        doc="Most partitions that a task reads, one after the other: for many small ones. Not in loads.",
    )  # fmt: skip
    fail_on_data_loss: bool = prop(
        "failOnDataLoss", True, **_flag, use=READ,
        doc="Fail if offsets to read are gone. `false`: read what is left and log the rest.",
    )  # fmt: skip
    skip_corrupt: bool = prop(
        "onCorruptBatch", "fail", **_either("fail", "skip"), use=READ,
        doc="What to do with a corrupt batch: `fail`, or `skip` to log its offsets and [continue after "
            "it](#corrupt-batches).",
    )  # fmt: skip
    include_headers: bool = prop("includeHeaders", False, **_flag, use=READ, doc="Add the column `headers`.")
    include_broker: bool = prop(
        "includeBroker", False, **_flag, use=READ,
        doc="Add the column `broker`, last: the id of the broker that served the row.",
    )  # fmt: skip
    columns: tuple[str, ...] | None = prop(
        "columns", None, parse_columns, use=READ, shown="all",
        doc="Columns to decode, in this order, separated by commas. The others cost nothing.",
    )  # fmt: skip
    isolation: str = prop(
        "kafka.isolation.level", ALL_RECORDS, _word, check=one_of(ALL_RECORDS, "read_committed"), use=READ,
        doc="`read_committed` leaves out records of aborted transactions and ends at the last stable offset.",
    )  # fmt: skip
    poll_timeout_ms: int = prop(
        "kafkaConsumer.pollTimeoutMs", 120_000, int, check=positive, wording=_NUMBER, use=READ,
        doc="How long a task waits for records before it fails.",
    )  # fmt: skip
    offset_retries: int = prop(
        "fetchOffset.numRetries", 3, int, check=not_negative, wording=_NUMBER, use=READ,
        doc="Retries of a look-up of offsets.",
    )  # fmt: skip
    offset_retry_interval_ms: int = prop(
        "fetchOffset.retryIntervalMs", 1000, int, check=not_negative, wording=_NUMBER, use=READ,
        doc="Milliseconds between retries.",
    )  # fmt: skip
    load_name: str | None = prop(
        "loadName", None, use=(LOAD,),
        doc="Start where the last load of this name ended: letters, digits, `.`, `_`, `-`. Needs "
            "`offsetsPath`.",
    )  # fmt: skip
    offsets_path: str | None = prop(
        "offsetsPath", None, use=READ,
        doc="Directory for loads' offsets, reachable by driver and executors under this path; or for a "
            "stream's start, reachable by its driver.",
    )  # fmt: skip
    commit_offsets: str = prop(
        "commitOffsets", "none", _word, check=one_of("none", "stage", "group"), use=READ,
        doc="`none` commits nothing. `stage` commits the load once every row has been read, even by "
            "`count()`: **at most once if the write fails**; better is [`kafkalog.load`](loads.md#in-python) "
            "or `commitToken`. `group` also commits to `kafka.group.id`, which must be given. Streams take "
            "`none`, or `group` to commit each finished batch to `kafka.group.id`.",
    )  # fmt: skip
    commit_token: str = prop(
        "commitToken", "", use=(LOAD,),
        doc="Commit after a write that succeeded; set by "
            "[`kafkalog.commit_on_success()`](loads.md#without-a-block), for its session.",
    )  # fmt: skip
    on_pending_plan: str = prop(
        "onPendingPlan", "replay", _word, check=one_of("replay", "fail", "discard"), use=(LOAD,),
        doc="If an earlier load was planned but not committed: `replay` reads the same offsets again, "
            "`fail` raises an error, `discard` makes a new plan.",
    )  # fmt: skip
    on_topic_recreated: str = prop(
        "onTopicRecreated", "fail", _word, check=one_of("fail", "earliest", "skip"), use=(LOAD,),
        doc="If a topic was deleted and created again: `fail`, `earliest` to read the new one from its "
            "start, `skip` to leave it out.",
    )  # fmt: skip
    max_load_records: int | None = prop(
        "maxRecordsPerLoad", None, int, check=positive, wording=_COUNT, use=(LOAD,),
        doc="Most offsets in a load, shared among the partitions in proportion to what waits in each; the "
            "next load reads on.",
    )  # fmt: skip
    max_load_bytes: int | None = prop(
        "maxBytesPerLoad", None, int, check=positive, wording=_COUNT, use=(LOAD,),
        doc="About the most bytes of stored log in a load, estimated as for `maxBytesPerPartition`; at "
            "least one offset.",
    )  # fmt: skip
    between: HistoryRange | None = prop(
        "between", None, parse_between, use=(LOAD,),
        doc="`commit:30,commit:37` reads again what loads 31 to 37 of `loadName` read; `start,commit:37` "
            "from the first load on. Not a load itself; commits nothing.",
    )  # fmt: skip
    as_of: HistoryRange | None = prop(
        "asOf", None, parse_as_of, use=(LOAD,),
        doc="Read again what `loadName` had loaded at this time, `2026-11-21T18:00:00Z` or milliseconds: as "
            "`between` from the start to the newest commit up to then.",
    )  # fmt: skip
    load_plan: int | None = prop(
        "loadPlan", None, int, check=_plan_number, use=(LOAD,),
        doc="Read exactly the offsets of this plan, leave receipts and commit nothing; set by "
            "`kafkalog.load()`.",
    )  # fmt: skip
    load_run: str = prop(
        "loadRun", "", check=_load_run, use=(LOAD,),
        doc="Name of the run that reads `loadPlan`, used in its tasks' marks; set by `kafkalog.load()`.",
    )  # fmt: skip
    group_id: str | None = prop(
        "kafka.group.id", None, _text_or_none, use=READ,
        doc="The group of `startingOffsets=group`. Also commit to this consumer group: a load's offsets "
            "after its commit, a stream's after each batch with `commitOffsets=group`. Reads never join it.",
    )  # fmt: skip
    offset_store: str = prop(
        "offsetStore", KAFKA, _word, check=one_of(KAFKA, ZOOKEEPER), use=READ,
        doc="Where that group's offsets are: `kafka`, in its brokers, or `zookeeper`, in "
            "`/consumers/<group>/offsets` at `zookeeper.connect`, for tools that look there. Always "
            "`zookeeper` with `protocol=0.7`.",
    )  # fmt: skip
    group_id_prefix: str = prop(
        "groupIdPrefix", "spark-kafka-relation", use=READ,
        doc="Accepted for compatibility, without effect: reading needs no group.",
    )  # fmt: skip
    max_offsets: int | None = prop(
        "maxOffsetsPerTrigger", None, int, check=positive, wording=_COUNT, use=(STREAM,),
        doc="Most offsets in a batch, shared among the partitions in proportion to what waits in each.",
    )  # fmt: skip
    min_offsets: int | None = prop(
        "minOffsetsPerTrigger", None, int, check=positive, wording=_COUNT, use=(STREAM,),
        doc="Offsets that a batch waits for.",
    )  # fmt: skip
    max_delay_ms: int = prop(
        "maxTriggerDelay", "15m", _duration_ms, use=(STREAM,),
        wording="is a time such as 100ms, 30s, 15m, 2h or 1d",
        doc="Longest such wait: `100ms`, `30s`, `15m`, `2h`, `1d`.",
    )  # fmt: skip
    stream_name: str | None = prop(
        "streamName", None, check=_stream_name, use=(STREAM,),
        doc="With `offsetsPath`: name under which this query's start is stored, so that its first batch can "
            "be repeated after a crash. Each query needs its own.",
    )  # fmt: skip

    subscription: Subscription = unlisted(None)
    start: StartLimit = unlisted(None)
    wire: ConsumerConfig | Source07Config = unlisted(None)
    """The client configuration from the ``kafka.*`` options, of the generation to read."""
    group_store: ZooKeeperConfig | None = unlisted(None)
    """The ZooKeeper that keeps the group's offsets; None if brokers do, or without a group."""

    @property
    def splits(self) -> bool:
        return not (self.min_partitions is self.max_records is self.max_bytes is None)

    def divides(self, count: int) -> bool:
        """Whether a batch of ``count`` partitions, empty ones included, may become more tasks."""
        limited = self.max_records is not None or self.max_bytes is not None
        return limited or (self.min_partitions or 0) > count

    @property
    def v07(self) -> Source07Config | None:
        return self.wire if isinstance(self.wire, Source07Config) else None

    @property
    def per_broker(self) -> bool:
        return self.v07 is not None

    @property
    def row_columns(self) -> tuple[str, ...]:
        return column_names(
            self.columns,
            include_headers=self.include_headers,
            include_broker=self.include_broker,
            per_broker=self.per_broker,
        )

    @property
    def consumer(self) -> ConsumerConfig:
        """The client of the wire since 0.8. Raises `InvalidConfig` for a read of 0.7."""
        if isinstance(self.wire, Source07Config):
            raise InvalidConfig("this needs brokers of the wire since 0.8, and protocol=0.7 is read")
        return self.wire

    @property
    def isolation_level(self) -> str:
        """0.7 has no transactions, so reads return all records."""
        return ALL_RECORDS if isinstance(self.wire, Source07Config) else self.wire.isolation_level


@configuration
class BatchOptions(SourceOptions):
    end: OffsetLimit = unlisted(None)
    load: LoadOptions | None = unlisted(None)
    """None for a read that belongs to no load."""
    topic_ids: Mapping[str, str] | None = unlisted(None)
    """Ids of the topics whose offsets are read, if known: in another topic of the name they mean nothing."""


@configuration
class StreamOptions(SourceOptions):
    """The options of a stream. Limits count offsets, of all partitions together."""

    starting_offsets: StartLimit = prop_of(SourceOptions, "starting_offsets", default="latest")
    start_place: tuple[str, str] | None = unlisted(None)
    """Where the query's start is stored: an absolute directory, and a name in it."""

    @property
    def commits_group(self) -> bool:
        return self.commit_offsets == "group"


class Unit(NamedTuple):
    """A unit to write once: a batch of a query, or a write that was given an id."""

    name: str
    batch: int


@configuration
class SinkOptions(Config):
    servers: str | None = prop(
        "kafka.bootstrap.servers", None, _text_or_none, use=(SINK,), shown="required", doc=_SERVERS_DOC
    )
    topic: str | None = prop(
        "topic", None, _text_or_none, use=(SINK,),
        doc="Topic of every row; overrides the column `topic`. Required without that column.",
    )  # fmt: skip
    include_headers: bool = prop(
        "includeHeaders", True, **_flag, use=(SINK,),
        doc="Write the column `headers` (Spark's connector always does).",
    )  # fmt: skip
    include_timestamp: bool = prop(
        "includeTimestamp", False, **_flag, use=(SINK,),
        doc="Send the column `timestamp` as the record's time; otherwise the time of the write.",
    )  # fmt: skip
    transactional_prefix: str | None = prop(
        "transactional.id.prefix", None, _text_or_none, check=_sink_id, use=(SINK,),
        doc="Write in [transactions](#exactly-once), for each task one named `<prefix>-<task>`, committed "
            "once all tasks have succeeded. Each query needs its own prefix: letters, digits, `.`, `_`, `-`.",
    )  # fmt: skip
    write_id: str | None = prop(
        "transactional.write.id", None, _text_or_none, check=_sink_id, use=(SINK, BATCH),
        doc="Name of this write, with the prefix: repeating it under its name adds nothing to what was "
            "committed. Streams use their batch numbers instead.",
    )  # fmt: skip
    checkpoint_location: str | None = prop(
        "checkpointLocation", None, use=(SINK, STREAM), doc="Spark's own, of every streaming query."
    )
    query_name: str | None = prop("queryName", None, use=(SINK, STREAM), doc="Spark's own.")

    producer: ProducerConfig = unlisted(None)

    @property
    def unit(self) -> Unit | None:
        return Unit(f"write {self.write_id}", 0) if self.write_id is not None else None


READ_OPTIONS = describe(SourceOptions)
SINK_OPTIONS = describe(SinkOptions)


def unknown_option(name: str, options: Sequence[Property], client: type[ClientConfig]) -> InvalidConfig:
    """The error, with what was probably meant: an option, or a property of ``client`` without its prefix."""
    properties = (each for item in describe(client) for each in (item.name, *item.aliases))
    by_key = {each: f"kafka.{each}" for each in (*properties, *client.meaningless)}
    by_key |= {option.name.lower(): option.name for option in options}
    near = nearest(name.lower(), by_key)
    known = ", ".join(option.name for option in options) + " and kafka.* properties"
    hint = f"Did you mean '{by_key[near]}'?" if near else f"Known: {known}"
    return InvalidConfig(f"Unknown option '{name}'. {hint}")


def _shipped_file(name: str) -> str | None:
    """Where Spark puts a file of the job (``--files``, ``addFile``) in each executor; None without Spark."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkFiles  # here, because command lines import this module without Spark

    try:
        root = SparkFiles.getRootDirectory()
    except (AssertionError, AttributeError):
        return None
    return str(Path(root) / name) if root else None


look_also(_shipped_file)  # drivers and tasks, which unpickle the options, import this module
