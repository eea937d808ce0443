"""Scripts of properties, and of what a broker says of itself."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_kafkalog.protocol.api.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    ComponentData,
    DescribableLogDirTopic,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ElectTopicPartitions,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from pyspark_kafkalog.protocol.api.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.peers.scripted.session import (
    APPEND,
    BROKER,
    DELETE,
    NODE,
    SET,
    SUBTRACT,
    TOPIC,
    Session,
    script,
)


@script(ApiKey.DESCRIBE_CONFIGS)
def describing_properties(session: Session) -> None:
    topic = session.topic(retention_ms="60000")

    def ask(step: str, kind: int, name: str, *keys: str, synonyms: bool = True) -> None:
        resource = DescribeConfigsResource(kind, name, keys or None)
        session.ask(step, DescribeConfigsRequest((resource,), synonyms))

    ask("a topic's own", TOPIC, topic, "retention.ms")
    for key in TOPIC_KEYS:
        ask(f"a topic's {key}", TOPIC, topic, key)
    ask("without synonyms", TOPIC, topic, "retention.ms", synonyms=False)
    ask("a property that is none", TOPIC, topic, "no.such")
    ask("of no topic", TOPIC, f"{topic}-never")
    ask("of a name that is none", TOPIC, f"{topic}/")
    for key in BROKER_KEYS:
        ask(f"the broker's {key}", BROKER, str(NODE), key)
    ask("of another broker", BROKER, str(NODE + 1))
    ask("of a broker that is no number", BROKER, "x")
    ask("of all brokers", BROKER, "")
    ask("of a kind that is none", 77, "x")


TOPIC_KEYS = (
    "segment.bytes", "segment.ms", "segment.index.bytes", "index.interval.bytes", "flush.messages",
    "flush.ms", "retention.bytes", "cleanup.policy", "file.delete.delay.ms", "max.message.bytes",
    "message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms",
    "compression.type", "min.insync.replicas", "delete.retention.ms", "min.compaction.lag.ms",
    "max.compaction.lag.ms", "min.cleanable.dirty.ratio", "segment.jitter.ms", "preallocate",
    "unclean.leader.election.enable", "compression.gzip.level", "compression.lz4.level",
    "compression.zstd.level", "remote.storage.enable", "local.retention.ms",
    "local.retention.bytes", "leader.replication.throttled.replicas",
)  # fmt: skip

BROKER_KEYS = (
    "node.id", "log.segment.bytes", "log.retention.hours", "log.retention.bytes", "log.roll.hours",
    "log.index.interval.bytes", "message.max.bytes", "num.partitions", "log.cleanup.policy", "listeners",
    "offset.metadata.max.bytes", "producer.id.expiration.ms", "log.flush.interval.messages",
    "num.network.threads",
)  # fmt: skip


@script(ApiKey.ALTER_CONFIGS)
def replacing_properties(session: Session) -> None:
    topic = session.topic(retention_ms="60000")

    def ask(step: str, kind: int, name: str, validate_only: bool = False, **configs: str | None) -> None:
        given = tuple(AlterableConfig(key.replace("_", "."), value) for key, value in configs.items())
        resource = AlterConfigsResource(kind, name, given)
        session.ask(step, AlterConfigsRequest((resource,), validate_only))

    ask("all of a topic's", TOPIC, topic, segment_bytes="1048576")
    ask("only validated", TOPIC, topic, True, segment_bytes="2097152")
    ask("a wrong value", TOPIC, topic, segment_bytes="x")
    ask("an unknown one", TOPIC, topic, no_such="1")
    ask("a null", TOPIC, topic, segment_bytes=None)
    ask("of no topic", TOPIC, f"{topic}-never", segment_bytes="1048576")
    session.pause()
    session.ask("what is in force", _of_topic(topic), 4)
    ask("the broker's", BROKER, str(NODE), log_retention_ms="50000")
    session.pause()
    session.ask("what is in force of the broker", _of_broker(str(NODE), "log.retention.ms"), 4)
    session.ask("and of a topic by that", _of_topic(topic), 4)
    ask("none of the broker's", BROKER, str(NODE))
    session.pause()
    ask("one that needs a restart", BROKER, str(NODE), num_partitions="3")
    ask("another broker's", BROKER, str(NODE + 1), log_retention_ms="50000")


def _of_topic(topic: str) -> DescribeConfigsRequest:
    keys = ("retention.ms", "segment.bytes", "cleanup.policy")
    return DescribeConfigsRequest((DescribeConfigsResource(TOPIC, topic, keys),), True)


def _of_broker(name: str, *keys: str) -> DescribeConfigsRequest:
    return DescribeConfigsRequest((DescribeConfigsResource(BROKER, name, keys or None),), True)


@script(ApiKey.INCREMENTAL_ALTER_CONFIGS)
def changing_properties(session: Session) -> None:
    topic = session.topic(retention_ms="60000")

    def ask(
        step: str, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
    ) -> None:
        given = tuple(IncrementalAlterableConfig(*each) for each in changes)
        resource = IncrementalAlterConfigsResource(kind, name, given)
        session.ask(step, IncrementalAlterConfigsRequest((resource,), validate_only))

    ask("set and delete", TOPIC, topic, ("segment.bytes", SET, "1048576"), ("retention.ms", DELETE, None))
    ask("append", TOPIC, topic, ("cleanup.policy", APPEND, "compact"))
    session.pause()
    session.ask("what is in force", _of_topic(topic), 4)
    ask("subtract", TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete"))
    session.pause()
    session.ask("what is in force then", _of_topic(topic), 4)
    ask("append to no list", TOPIC, topic, ("retention.ms", APPEND, "1"))
    ask("only validated", TOPIC, topic, ("segment.bytes", SET, "2097152"), validate_only=True)
    ask("a wrong value", TOPIC, topic, ("segment.bytes", SET, "x"))
    ask("an unknown one", TOPIC, topic, ("no.such", SET, "1"))
    ask("a null", TOPIC, topic, ("segment.bytes", SET, None))
    ask("one twice", TOPIC, topic, ("segment.bytes", SET, "1048576"), ("segment.bytes", SET, "1048577"))
    ask("an operation that is none", TOPIC, topic, ("segment.bytes", 9, "1048576"))
    ask("of no topic", TOPIC, f"{topic}-never", ("segment.bytes", SET, "1048576"))
    ask("of a kind that is none", 77, "x", ("a", SET, "b"))
    for owner, name in (("the broker", str(NODE)), ("all brokers", "")):
        ask(f"set for {owner}", BROKER, name, ("log.retention.ms", SET, "50000"))
        session.pause()
        session.ask(f"in force at {owner}", _of_broker(name, "log.retention.ms"), 4)
        ask(f"delete for {owner}", BROKER, name, ("log.retention.ms", DELETE, None))
        session.pause()
        ask(f"one that needs a restart for {owner}", BROKER, name, ("num.partitions", SET, "3"))
        ask(f"a wrong value for {owner}", BROKER, name, ("log.retention.ms", SET, "soon"))
    ask("another broker's", BROKER, str(NODE + 1), ("log.retention.ms", SET, "50000"))


@script(ApiKey.INCREMENTAL_ALTER_CONFIGS)
def values_of_properties(session: Session) -> None:
    topic = session.topic()

    def change(step: str, kind: int, name: str, *changes: tuple[str, int, str | None]) -> None:
        given = tuple(IncrementalAlterableConfig(*each) for each in changes)
        session.ask(
            step, IncrementalAlterConfigsRequest((IncrementalAlterConfigsResource(kind, name, given),))
        )

    def describe(step: str, kind: int, name: str, *keys: str) -> DescribeConfigsResult:
        asked = DescribeConfigsRequest((DescribeConfigsResource(kind, name, keys or None),))
        result: DescribeConfigsResult = session.ask(step, asked, 4).results[0]
        return result

    for kind, name, values in ((TOPIC, topic, TOPIC_VALUES), (BROKER, str(NODE), BROKER_VALUES)):
        for number in range(max(map(len, values.values()))):
            for key, texts in values.items():
                if number < len(texts):
                    change(f"{key}={texts[number]!r} of {name}", kind, name, (key, SET, texts[number]))
            session.pause()
            describe(f"in force after {number} of {name}", kind, name, *values)
    for number, (operation, word) in enumerate(WORDS):
        change(f"policy {number} {operation} {word!r}", TOPIC, topic, ("cleanup.policy", operation, word))
        session.pause()
        describe(f"policy after {number}", TOPIC, topic, "cleanup.policy")
    all_of_it = describe("all of the topic", TOPIC, topic).configs
    change("all set again", TOPIC, topic, *((each.name, SET, each.value) for each in all_of_it))
    given = tuple(AlterableConfig(each.name, each.value) for each in all_of_it)
    again = AlterConfigsRequest((AlterConfigsResource(TOPIC, topic, given),))
    session.ask("all replaced by the same", again, 2)
    session.pause()
    describe("all of the topic again", TOPIC, topic)


TOPIC_VALUES = {
    "cleanup.policy": ("", "compact,compact", "none", "Compact", " compact , delete ", ","),
    "min.cleanable.dirty.ratio": (
        "NaN", "nan", "1e-3", "1.0000001", "-0.1", "Infinity", "1_0", "", ".5", "0.5d",
    ),
    "segment.bytes": ("13", "007", "1e6", "2147483648", "", "+2097152", " 1048577 "),
    "segment.ms": ("0", "9223372036854775808", "1"),
    "segment.index.bytes": ("3", "4"),
    "index.interval.bytes": ("-1", "0"),
    "flush.messages": ("0", "1"),
    "retention.ms": ("-2", "-1", "0"),
    "retention.bytes": ("-2", "x", "-1"),
    "max.message.bytes": ("-1", "2147483647"),
    "message.timestamp.type": ("createtime", "", " LogAppendTime "),
    "compression.type": ("none", "GZIP", "gzip "),
    "compression.gzip.level": ("0", "10", "9"),
    "preallocate": ("yes", "1", "", " TRUE "),
    "max.compaction.lag.ms": ("0", "1"),
    "leader.replication.throttled.replicas": (
        "*", "none", "0", "0:1:2", "*,0:1", "*,*", "0:-1", "a:b", "0:1, 1:2", "",
    ),
    "follower.replication.throttled.replicas": ("0:1:", "0:1,0:1"),
}  # fmt: skip

BROKER_VALUES = {
    "log.cleaner.backoff.ms": ("-1", "14000"),
    "log.cleaner.dedupe.buffer.size": ("0", "3000000"),
    "log.cleaner.io.max.bytes.per.second": ("x", "Infinity", "1000"),
    "log.cleaner.min.cleanable.ratio": ("2", "NaN"),
    "log.cleanup.policy": ("none", "compact,compact", ""),
    "log.segment.bytes": ("13", "1048577"),
    "log.cleaner.enable": ("true",),
    "node.id": (str(NODE),),
}

WORDS = (
    (SET, "delete"), (SUBTRACT, "delete"), (SUBTRACT, "delete"), (APPEND, "compact"), (APPEND, "compact"),
    (APPEND, "delete"), (SET, "compact,compact,delete"), (SUBTRACT, "compact"),
)  # fmt: skip


@script(ApiKey.DESCRIBE_LOG_DIRS)
def directories(session: Session) -> None:
    topic = session.filled()
    wanted = (DescribableLogDirTopic(topic, (0, 7)), DescribableLogDirTopic(f"{topic}-never", (0,)))
    session.ask("of some partitions", DescribeLogDirsRequest(wanted))
    session.ask("of none", DescribeLogDirsRequest(()))


@script(ApiKey.ALTER_REPLICA_LOG_DIRS)
def moves_to_directories(session: Session) -> None:
    topic = session.filled()
    only = (DescribableLogDirTopic(topic, (0,)),)
    (found,) = session.ask("where it is", DescribeLogDirsRequest(only), 4).results

    def ask(step: str, *moves: tuple[str, str, tuple[int, ...]]) -> None:
        dirs = (
            AlterReplicaLogDir(path, (AlterReplicaLogDirTopic(name, numbers),))
            for path, name, numbers in moves
        )
        session.ask(step, AlterReplicaLogDirsRequest(tuple(dirs)))

    here, never = found.log_dir, f"{topic}-never"
    ask("to where it is", (here, topic, (0,)))
    ask("to nowhere", ("/nowhere", topic, (0,)))
    ask("to no path", ("", topic, (0,)))
    ask("no such partition", (here, topic, (0, 7)))
    ask("no such topic", (here, never, (0,)))
    ask("no such topic to nowhere", ("/nowhere", never, (0,)))
    ask("one twice", ("/nowhere", topic, (0,)), (here, topic, (0, 0)))
    ask("nothing")
    session.ask("where it is then", DescribeLogDirsRequest(only), 4)


@script(ApiKey.DESCRIBE_CLUSTER)
def the_cluster(session: Session) -> None:
    session.ask("plain", DescribeClusterRequest())
    session.ask("with operations", DescribeClusterRequest(True))
    if session.version:
        for kind in (0, 2, 9):
            session.ask(f"endpoints of type {kind}", DescribeClusterRequest(endpoint_type=kind))


@script(ApiKey.DESCRIBE_CLIENT_QUOTAS)
def quotas_of_clients(session: Session) -> None:
    for step, components in _filters():
        session.ask(step, DescribeClientQuotasRequest(components))


def _filters() -> Iterator[tuple[str, tuple[ComponentData, ...]]]:
    user, ip = ComponentData("user", 2, None), ComponentData("ip", 2, None)
    yield "all", ()
    yield "of users", (user,)
    yield "of one user", (ComponentData("user", 0, "u"),)
    yield "of the default", (ComponentData("client-id", 1, None),)
    yield "of users twice", (user, user)
    yield "of a kind that is none", (ComponentData("group", 2, None),)
    yield "of no kind", (ComponentData("", 2, None),)
    yield "a match that is none", (ComponentData("user", 9, None),)
    yield "exactly nothing", (ComponentData("user", 0, None),)
    yield "a default with a name", (ComponentData("user", 1, "u"),)
    yield "of users and addresses", (user, ip)


@script(ApiKey.LIST_CONFIG_RESOURCES)
def resources_with_properties(session: Session) -> None:
    if session.version:
        for kind in (BROKER, 16, 32, 77):
            session.ask(f"of kind {kind}", ListConfigResourcesRequest((kind,)))
    else:
        session.ask("client metrics", ListConfigResourcesRequest())


@script(ApiKey.ELECT_LEADERS)
def electing_leaders(session: Session) -> None:
    topic = session.topic()
    for kind in (0, 1) if session.version else (0,):
        named = (ElectTopicPartitions(topic, (0, 7)), ElectTopicPartitions(f"{topic}-never", (0,)))
        session.ask(f"of named partitions, type {kind}", ElectLeadersRequest(kind, named))
        session.ask(f"of none, type {kind}", ElectLeadersRequest(kind, ()))


@script(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
def reassigning_partitions(session: Session) -> None:
    topic = session.topic()
    choices: dict[str, tuple[int, ...] | None] = {
        "as it is": (NODE,), "a cancellation": None, "another broker": (NODE + 1,), "no broker": (),
        "a broker twice": (NODE, NODE),
    }  # fmt: skip
    for step, replicas in choices.items():
        for name, number in ((topic, 0), (topic, 7), (f"{topic}-never", 0)):
            wanted = ReassignableTopic(name, (ReassignablePartition(number, replicas),))
            session.ask(f"{step} of {name}-{number}", AlterPartitionReassignmentsRequest(topics=(wanted,)))


@script(ApiKey.LIST_PARTITION_REASSIGNMENTS)
def reassignments(session: Session) -> None:
    topic = session.topic()
    session.ask("of all", ListPartitionReassignmentsRequest(topics=None))
    named = ListPartitionReassignmentsTopics(topic, (0, 7))
    session.ask("of a topic", ListPartitionReassignmentsRequest(topics=(named,)))
