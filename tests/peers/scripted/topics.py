"""Scripts that make, widen, describe and delete topics."""

from __future__ import annotations

from msgspec import structs

from pyspark_kafkalog.protocol.api.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    NamedTopic,
)
from pyspark_kafkalog.protocol.api.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.peers.scripted.session import (
    NEVER,
    NODE,
    Session,
    script,
)


def created(name: str, partitions: int = 1, factor: int = 1, **configs: str | None) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=tuple(CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()),
    )


@script(ApiKey.CREATE_TOPICS)
def creating_topics(session: Session) -> None:
    def ask(step: str, *topics: CreatableTopic, validate_only: bool = False) -> None:
        if validate_only and not session.version:
            return
        request = CreateTopicsRequest(topics=topics, timeout_ms=5000, validate_only=validate_only)
        session.ask(step, request)

    name = session.name
    ask("one", created(name, 2, retention_ms="60000"))
    ask("again, and another", created(name), created(f"{name}-other"))
    ask("a name that is none", created(f"{name}/"))
    ask("an empty name", created(""))
    ask("names that collide", created(name.replace("-", ".")), created(f"{name}_"))
    ask("no partitions", created(f"{name}-a", 0))
    ask("two replicas", created(f"{name}-b", factor=2))
    ask("no replicas", created(f"{name}-c", factor=0))
    ask("an unknown property", created(f"{name}-d", no_such="1"))
    ask("a wrong value", created(f"{name}-e", retention_ms="soon"))
    ask("a value that is null", created(f"{name}-f", retention_ms=None))
    ask("twice in a request", created(f"{name}-g"), created(f"{name}-g"))
    ask("only validated", created(f"{name}-h"), validate_only=True)
    ask("only validated, and there", created(name), validate_only=True)
    assigned = CreatableReplicaAssignment(0, (NODE,))
    topic = created(f"{name}-i", -1, -1)
    ask("assigned", structs.replace(topic, assignments=(assigned,)))
    ask("assigned with a count", structs.replace(created(f"{name}-j", 1, 1), assignments=(assigned,)))
    wrong = CreatableReplicaAssignment(0, (NODE + 1,))
    ask("assigned to none", structs.replace(created(f"{name}-k", -1, -1), assignments=(wrong,)))
    if session.version >= 4:
        ask("as the broker has it", created(f"{name}-l", -1, -1))


@script(ApiKey.DELETE_TOPICS)
def deleting_topics(session: Session) -> None:
    topic, other = session.topic(), session.topic("-other")
    by_id = session.version >= 6

    def named(*names: str) -> DeleteTopicsRequest:
        states = tuple(DeleteTopicState(name=name) for name in names) if by_id else ()
        return DeleteTopicsRequest(states, () if by_id else names, 5000)

    session.ask("one that is there and one that is not", named(topic, f"{topic}-never"))
    session.ask("once more", named(topic))
    if by_id:
        states = (
            DeleteTopicState(topic_id=session.id_of(other)),
            DeleteTopicState(topic_id=NEVER),
        )
        session.ask("by id", DeleteTopicsRequest(states, (), 5000))


@script(ApiKey.CREATE_PARTITIONS)
def widening_topics(session: Session) -> None:
    topic = session.topic(partitions=2)

    def ask(step: str, name: str, count: int, *assigned: int, validate_only: bool = False) -> None:
        to = tuple(CreatePartitionsAssignment((each,)) for each in assigned) or None
        wanted = CreatePartitionsTopic(name, count, to)
        session.ask(step, CreatePartitionsRequest((wanted,), 5000, validate_only))

    ask("to as many", topic, 2)
    ask("to fewer", topic, 1)
    ask("to none", topic, 0)
    ask("of no topic", f"{topic}-never", 3)
    ask("only validated", topic, 3, validate_only=True)
    ask("to three", topic, 3)
    ask("assigned", topic, 4, NODE)
    ask("assigned to none", topic, 5, NODE + 1)
    ask("with too many assignments", topic, 5, NODE, NODE)


@script(ApiKey.METADATA)
def describing_topics(session: Session) -> None:
    topic = session.topic(partitions=2)

    def ask(step: str, *names: str) -> None:
        wanted = tuple(MetadataRequestTopic(name=name) for name in names)
        flags = {"allow_auto_topic_creation": False} if session.version >= 4 else {}
        session.ask(step, MetadataRequest(wanted, **flags))

    ask("two topics and none", topic, f"{topic}-never")
    ask("a name that is none", f"{topic}/")
    if session.version:
        ask("no topics")
    if session.version >= 10:
        wanted = tuple(
            MetadataRequestTopic(name=None, topic_id=each) for each in (session.id_of(topic), NEVER)
        )
        session.ask("by id", MetadataRequest(wanted))
    if session.version >= 8:
        asked = MetadataRequest((MetadataRequestTopic(name=topic),), include_topic_authorized_operations=True)
        session.ask("with operations", asked)


@script(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
def describing_partitions(session: Session) -> None:
    names = [session.topic(f"-{letter}", 3) for letter in "ba"]
    asked = tuple(map(NamedTopic, [*names, f"{names[0]}-never", "a/b"]))

    def ask(step: str, limit: int = 2_000, cursor: Cursor | None = None) -> None:
        session.ask(step, DescribeTopicPartitionsRequest(asked, limit, cursor))

    ask("named topics")
    ask("up to four partitions", 4)
    ask("up to three partitions", 3)
    ask("from a cursor on", 2_000, Cursor(names[0], 1))
    ask("from a cursor of no topic", 2, Cursor(f"{names[1]}0", 1))
    ask("from a cursor after the last partition", 2, Cursor(names[1], 9))
    ask("from a negative partition", 2, Cursor(names[1], -1))
    ask("no partition", 0)
