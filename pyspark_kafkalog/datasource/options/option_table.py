"""The options of reads and of writes: names, defaults and what docs/datasource.md says of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the reader, for `parse_batch_options` and for the manual."""

    name: str
    default: str
    doc: str
    use: str = "both"
    """Where it has a meaning: ``both``, ``batch`` or ``stream``."""


OPTIONS = (
    Option("kafka.bootstrap.servers", "required", "Brokers to begin with, `host:port,host:port`."),
    Option(
        "protocol",
        "0.8",
        "`0.8` is the wire since 0.8, today's; `0.7` reads [topics of Kafka 0.7](#topics-of-kafka-07), with "
        "`zookeeper.connect` or `broker.list` instead of the brokers above.",
    ),
    Option(
        "zookeeper.connect",
        "",
        "Where brokers of 0.7 and their topics are registered, `host:port,host:port/chroot`; or where "
        "`offsetStore=zookeeper` keeps offsets.",
    ),
    Option("zk.connect", "", "The same: 0.7's own name."),
    Option("broker.list", "", "Brokers of 0.7 where there is no ZooKeeper, `id:host:port,id:host:port`."),
    Option("assign", "", 'Partitions to read, `{"topicA":[0,1]}`. Exactly one of this and the next two.'),
    Option("subscribe", "", "Topics to read, separated by commas."),
    Option("subscribePattern", "", "Regular expression; topics whose whole name matches are read."),
    Option(
        "startingOffsets",
        "earliest",
        "Where to begin: `earliest`; of a stream `latest` too, which is its default; JSON "
        '`{"topicA":{"0":23,"1":-2},"topicB":"earliest"}` that names '
        "every partition or its topic (-2 is earliest, -1 latest), `group` for the committed offsets of "
        "`kafka.group.id`, or `file:<directory>` for the offsets in its `part-*` files. With a load name: "
        "where the first load begins; or `commit:37`, a read that begins where load 37 ended and is no load.",
    ),
    Option(
        "endingOffsets",
        "latest",
        "Where to end, exclusive: `latest`, or JSON as above; -1 is latest.",
        use="batch",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "",
        'Begin at the first record at or after this time, `{"topicA":{"0":1700000000000}}`, milliseconds. '
        "Beats `startingOffsets`.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "",
        "End before the first record at or after this time; latest where there is none. Beats "
        "`endingOffsets`.",
        use="batch",
    ),
    Option(
        "startingTimestamp",
        "",
        "The same for every partition: one number, milliseconds. Beats the other two.",
    ),
    Option("endingTimestamp", "", "The same for every partition. Beats the other two.", use="batch"),
    Option(
        "startingOffsetsByTimestampStrategy",
        "error",
        "Where no record is that late: `error`, or `latest` to begin at the end.",
    ),
    Option("minPartitions", "", "Split large ranges so that about so many tasks run."),
    Option("maxRecordsPerPartition", "", "No task reads more than so many offsets."),
    Option(
        "maxBytesPerPartition",
        "",
        "No task reads much more than so many bytes of log, as it is stored. Estimated: the log is looked at "
        "in up to 16 places of a partition. Applied before the two above.",
    ),
    Option(
        "failOnDataLoss",
        "true",
        "Fail where offsets that should be read are gone; `false` reads what is left and logs the rest.",
    ),
    Option(
        "onCorruptBatch",
        "fail",
        "Where a batch is corrupt: `fail`, or `skip` to log its offsets and "
        "[go on without it](#corrupt-batches).",
    ),
    Option("includeHeaders", "false", "Add the column `headers`."),
    Option(
        "includeBroker", "false", "Add the column `broker`, last: the id of the node that served the row."
    ),
    Option(
        "columns",
        "all",
        "Columns to decode, separated by commas, in this order. What is not named costs nothing.",
    ),
    Option(
        "kafka.isolation.level",
        "read_uncommitted",
        "`read_committed` leaves out what aborted transactions wrote and ends at the last stable offset.",
    ),
    Option("kafkaConsumer.pollTimeoutMs", "120000", "How long a task waits for records before it fails."),
    Option("fetchOffset.numRetries", "3", "How often a look-up of offsets is tried again."),
    Option("fetchOffset.retryIntervalMs", "1000", "Milliseconds between two of them."),
    Option(
        "loadName",
        "",
        "Begin where the load of this name ended last: letters, digits, `.`, `_`, `-`. With `offsetsPath`.",
        use="batch",
    ),
    Option(
        "offsetsPath",
        "",
        "Directory of the loads' offsets, which driver and executors reach under this path; of a stream, of "
        "where it began, which its driver reaches.",
    ),
    Option(
        "commitOffsets",
        "none",
        "`none` moves and writes nothing. `stage`: once every row has been read, the load is committed, "
        "whatever became of the rows. `group`: the same, and `kafka.group.id` must be given. A stream takes "
        "`none` and `group`: each finished batch is told to `kafka.group.id`.",
    ),
    Option(
        "onPendingPlan",
        "replay",
        "Where an earlier load was planned and not committed: `replay` reads the same offsets again, `fail` "
        "says so, `discard` gives its plan up and makes a new one.",
        use="batch",
    ),
    Option(
        "onTopicRecreated",
        "fail",
        "Where a topic is not the one that was loaded: `fail`, `earliest` to read the new one whole, `skip` "
        "to leave it out.",
        use="batch",
    ),
    Option(
        "between",
        "",
        "`commit:30,commit:37`: read once more what loads 31 to 37 of `loadName` read, from `start` on with "
        "`start,commit:37`. This is no load and moves nothing.",
        use="batch",
    ),
    Option(
        "asOf",
        "",
        "Read once more what `loadName` had loaded at this time, `2026-11-21T18:00:00Z` or milliseconds. The "
        "same as `between` from the start to the newest commit not after it.",
        use="batch",
    ),
    Option(
        "loadPlan",
        "",
        "Read exactly the offsets of this plan and leave receipts, commit nothing; set by `kafkalog.load()`.",
        use="batch",
    ),
    Option(
        "loadRun",
        "",
        "The run that reads `loadPlan`: its tasks leave marks by this name; set by `kafkalog.load()`.",
        use="batch",
    ),
    Option(
        "kafka.group.id",
        "",
        "The group of `startingOffsets=group`, and the one that is told the next offsets of a load after its "
        "commit, of a stream with `commitOffsets=group` after each batch. It is never joined.",
    ),
    Option(
        "offsetStore",
        "kafka",
        "Where that group's offsets are: `kafka`, with its brokers; `zookeeper`, at `zookeeper.connect` in "
        "`/consumers/<group>/offsets`, for the tools that look there. With `protocol=0.7` it is `zookeeper`.",
    ),
    Option("groupIdPrefix", "spark-kafka-relation", "Accepted for compatibility: reading needs no group."),
    Option(
        "maxOffsetsPerTrigger",
        "",
        "At most so many offsets a batch, shared among the partitions by what waits in each.",
        use="stream",
    ),
    Option("minOffsetsPerTrigger", "", "A batch waits until so many offsets are there.", use="stream"),
    Option(
        "maxTriggerDelay", "15m", "But no longer than this: `100ms`, `30s`, `15m`, `2h`, `1d`.", use="stream"
    ),
    Option(
        "streamName",
        "",
        "With `offsetsPath`: the name under which is kept where this query began, so that its first batch "
        "can be repeated after a crash. Of one query, and not of another.",
        use="stream",
    ),
)
"""Every ``kafka.*`` property of the client beside these is passed on: docs/configuration.md."""


SINK_OPTIONS = (
    Option("kafka.bootstrap.servers", "required", "Brokers to begin with, `host:port,host:port`."),
    Option(
        "topic", "", "Where every row goes; beats the column `topic`. Required where there is no such column."
    ),
    Option(
        "includeHeaders",
        "true",
        "`false` leaves out the column `headers`, which Spark's own sink writes whatever the option says.",
    ),
    Option(
        "includeTimestamp",
        "false",
        "Send the column `timestamp` as the record's time; without it the time of the write is sent.",
    ),
    Option(
        "transactional.id.prefix",
        "",
        "Write in [transactions](#exactly-once): each task in one named `<prefix>-<task>`, committed once "
        "all tasks have succeeded. For this query alone; letters, digits, `.`, `_`, `-`.",
    ),
    Option(
        "transactional.write.id",
        "",
        "Name of this write, with the prefix: a write that is run again under its name adds nothing to what "
        "was committed. Streams have the numbers of their batches instead.",
        use="batch",
    ),
    Option("checkpointLocation", "", "Spark's own, of every streaming query.", use="stream"),
    Option("queryName", "", "Spark's own.", use="stream"),
)
"""Every ``kafka.*`` property of the producer beside these is passed on: docs/configuration.md."""
