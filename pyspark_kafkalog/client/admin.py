"""Topics, records, ACLs and transactions of a cluster. Functions take a `Cluster`, or ``bootstrap.servers``
for a single call. If some topics fail, the others are changed: the error is the first one's, and lists all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster, Where, by_topic, cluster_at
from pyspark_kafkalog.client.groups import ask_every_broker, at_coordinator
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.client.transactions import TransactionCoordinator
from pyspark_kafkalog.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTxnState,
    UnsupportedVersion,
    error_for,
    reason,
)
from pyspark_kafkalog.protocol.api.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from pyspark_kafkalog.protocol.api.configs import (
    ConfigOperation,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from pyspark_kafkalog.protocol.api.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from pyspark_kafkalog.protocol.api.metadata import CoordinatorType
from pyspark_kafkalog.protocol.api.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from pyspark_kafkalog.protocol.api.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from pyspark_kafkalog.types import TopicPartition

T = TypeVar("T")

_TOPIC_RESOURCE = 2
_DEFAULT_SOURCES = frozenset({4, 5})  # ConfigSource: a broker's static configuration, and Kafka's default
_DEFAULTS_VERSION = 4  # since this version of CreateTopics brokers have default partitions and replicas
_TOPIC_STATES_VERSION = 6  # since this version DeleteTopics has structs instead of a list of names


class NewTopic(msgspec.Struct, frozen=True):
    """A topic to create; -1 is the broker's default (for partitions since Kafka 2.4)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = msgspec.field(default_factory=dict)


class ConfigEntry(msgspec.Struct, frozen=True):
    """One property; ``value`` is None if unset or secret."""

    value: str | None
    is_default: bool


def create_topics(
    where: Where, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
) -> None:
    """Create ``topics``, or only check them. Raises `UnsupportedVersion` for old brokers."""
    topics = tuple(topics)

    def request(connection: Connection) -> CreateTopicsRequest:
        replicas = _check_creation(connection, topics)
        wanted = tuple(_creatable(topic, replicas) for topic in topics)
        return CreateTopicsRequest(topics=wanted, timeout_ms=timeout_ms, validate_only=validate_only)

    with cluster_at(where) as cluster:
        answer = _ask_controller(cluster, "creating topics", request, timeout_ms, lambda a: a.topics)
    _check("Create", answer.topics, [topic.name for topic in topics])


def delete_topics(where: Where, names: Sequence[str], *, timeout_ms: int = 30_000) -> None:
    """Delete topics. Raises the error of the first that could not be deleted."""

    def request(connection: Connection) -> DeleteTopicsRequest:
        if connection.version(ApiKey.DELETE_TOPICS) < _TOPIC_STATES_VERSION:
            return DeleteTopicsRequest(topic_names=tuple(names), timeout_ms=timeout_ms)
        states = tuple(DeleteTopicState(name=name) for name in names)
        return DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)

    with cluster_at(where) as cluster:
        answer = _ask_controller(cluster, "deleting topics", request, timeout_ms, lambda a: a.responses)
        for name in names:
            cluster.forget(name)
    _check("Delete", answer.responses, names)


def create_partitions(where: Where, totals: Mapping[str, int], *, timeout_ms: int = 30_000) -> None:
    """Increase topics' partitions to the given totals."""
    wanted = tuple(CreatePartitionsTopic(name=name, count=total) for name, total in totals.items())
    request = CreatePartitionsRequest(topics=wanted, timeout_ms=timeout_ms)
    with cluster_at(where) as cluster:
        answer = _ask_controller(
            cluster, "adding partitions", lambda _: request, timeout_ms, lambda a: a.results
        )
        for name in totals:
            cluster.forget(name)
    _check("Alter", answer.results, list(totals))


def delete_records(
    where: Where, before: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000
) -> dict[TopicPartition, int]:
    """Delete each partition's records before an offset (-1: all); returns the new start offsets.

    Raises `OffsetOutOfRange` if a partition ends earlier, and `ServerError` (POLICY_VIOLATION) if the topic's
    ``cleanup.policy`` lacks delete. Other partitions may have been changed.
    """

    def ask(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, int]:
        by_node: dict[int, list[tuple[TopicPartition, DeleteRecordsPartition]]] = defaultdict(list)
        for tp, offset in before.items():
            node_id = cluster.leader(tp, deadline=deadline).node_id
            by_node[node_id].append((tp, DeleteRecordsPartition(tp.partition, offset)))
        begins = {}
        for node_id, partitions in by_node.items():
            wanted = tuple(DeleteRecordsTopic(*row) for row in by_topic(partitions).items())
            request = DeleteRecordsRequest(wanted, timeout_ms)
            answer = cluster.connection(node_id, deadline).request(request, deadline=deadline)
            for topic in answer.topics:
                for result in topic.partitions:
                    tp = TopicPartition(topic.name, result.partition_index)
                    if result.error_code != ErrorCode.NONE:
                        cluster.forget(tp.topic)
                        why = reason(result.error_code, "Delete", topic=tp.topic)
                        doing = f"records of {tp} before offset {before.get(tp)}"
                        raise error_for(result.error_code, f"{doing}: {why}")
                    begins[tp] = result.low_watermark
        return begins

    with cluster_at(where) as cluster:
        return _retrying(cluster, "deleting records", timeout_ms, ask)


def alter_topic_configs(
    where: Where,
    name: str,
    *,
    set: Mapping[str, str] | None = None,
    delete: Iterable[str] = (),
    timeout_ms: int = 30_000,
) -> None:
    """Set or reset properties of a topic (Kafka 2.3). Raises `UnknownTopicOrPartition` or `InvalidConfig`."""
    changes = [
        IncrementalAlterableConfig(key, ConfigOperation.SET, value) for key, value in (set or {}).items()
    ]
    changes += [IncrementalAlterableConfig(key, ConfigOperation.DELETE) for key in delete]
    resource = IncrementalAlterConfigsResource(_TOPIC_RESOURCE, name, tuple(changes))
    request = IncrementalAlterConfigsRequest(resources=(resource,))
    with cluster_at(where) as cluster:
        answer = _ask_controller(
            cluster, "changing a topic", lambda _: request, timeout_ms, lambda a: a.responses
        )
    _checked(answer.responses, "AlterConfigs", name)


def describe_configs(where: Where, *, topic: str, timeout_ms: int = 30_000) -> dict[str, ConfigEntry]:
    resource = DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=topic)
    request = DescribeConfigsRequest(resources=(resource,))

    def ask(cluster: Cluster, deadline: Deadline) -> Any:
        return cluster.any_connection(deadline).request(request, deadline=deadline)

    with cluster_at(where) as cluster:
        answer = _retrying(cluster, f"describing {topic}", timeout_ms, ask)
    return {
        entry.name: ConfigEntry(entry.value, entry.config_source in _DEFAULT_SOURCES)
        for entry in _checked(answer.results, "DescribeConfigs", topic).configs
    }


def _creatable(topic: NewTopic, replicas: int) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=replicas if topic.replication_factor == -1 else topic.replication_factor,
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()),
    )


def _check_creation(connection: Connection, topics: Iterable[NewTopic]) -> int:
    """Replicas to request by default: -1, or 1 from brokers without a default."""
    if connection.served(ApiKey.CREATE_TOPICS) is None:
        raise UnsupportedVersion(
            f"{connection.peer}: brokers before Kafka 0.10.1 cannot create topics for clients: use "
            "kafka-topics.sh --zookeeper, or auto.create.topics.enable for a producer"
        )
    if connection.version(ApiKey.CREATE_TOPICS) >= _DEFAULTS_VERSION:
        return -1
    for topic in topics:
        if topic.partitions == -1:
            raise UnsupportedVersion(
                f"{connection.peer}: topic {topic.name}: brokers before Kafka 2.4 have no default number "
                "of partitions: give one"
            )
    return 1


def _retrying(cluster: Cluster, doing: str, timeout_ms: int, ask: Callable[[Cluster, Deadline], T]) -> T:
    deadline = Deadline.after(timeout_ms / 1000, cluster.clock)
    return cluster.retrying(doing, deadline).run(lambda limit: ask(cluster, limit))


def _ask_controller(
    cluster: Cluster,
    doing: str,
    request: Callable[[Connection], Any],
    timeout_ms: int,
    results: Callable[[Any], Iterable[Any]],
) -> Any:
    """The controller's response; retried if the controller moved or cannot be reached."""

    def ask(cluster: Cluster, deadline: Deadline) -> Any:
        known = cluster.metadata([], refresh=True, deadline=deadline)
        if known.controller_id in known.brokers:
            connection = cluster.connection(known.controller_id, deadline)
        else:
            connection = cluster.any_connection(deadline)
        answer = connection.request(request(connection), deadline=deadline)
        if any(result.error_code == ErrorCode.NOT_CONTROLLER for result in results(answer)):
            raise error_for(ErrorCode.NOT_CONTROLLER, f"{connection.peer} is not the controller")
        return answer

    return _retrying(cluster, doing, timeout_ms, ask)


def _check(operation: str, results: Iterable[Any], asked: Sequence[str]) -> None:
    failed = [result for result in results if result.error_code != ErrorCode.NONE]
    if not failed:
        return
    order = {name: place for place, name in enumerate(asked)}
    failed.sort(key=lambda result: order.get(result.name, len(order)))
    raise error_for(
        failed[0].error_code,
        "; ".join(_text(operation, str(result.name), result) for result in failed),
    )


def _checked(results: Sequence[Any], operation: str, name: str) -> Any:
    if not results:
        raise InvalidRequest(f"the {operation} response lacks {name}")
    if results[0].error_code != ErrorCode.NONE:
        raise error_for(results[0].error_code, _text(operation, name, results[0]))
    return results[0]


def _text(operation: str, name: str, result: Any) -> str:
    if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"topic {name} does not exist"
    why = reason(result.error_code, operation, topic=name, said=getattr(result, "error_message", None))
    return f"topic {name}: {why}"


_PATTERNS_SINCE = 1  # before this version (Kafka 2.0) ACLs and filters have literal names only


# --- ACLs. Without an authorizer: `ServerError` (SECURITY_DISABLED).


def list_acls(where: Where, wanted: AclFilter) -> list[Acl]:
    request = DescribeAclsRequest(*wanted)
    answer = _ask_any(where, "listing ACLs", lambda _: request)
    _check_acls("listing ACLs", "Describe", [answer])
    return sorted(
        _acl(each.resource_type, each.resource_name, each.pattern_type, acl)
        for each in answer.resources
        for acl in each.acls
    )


def add_acls(where: Where, acls: Sequence[Acl]) -> None:
    """Add ACLs; existing ones stay. Raises `KafkaError` if one is refused; others may have been added."""
    request = CreateAclsRequest(tuple(AclCreation(*acl) for acl in acls))
    has_prefixes = any(acl.pattern_type is not PatternType.LITERAL for acl in acls)

    def checked(connection: Connection) -> CreateAclsRequest:
        if has_prefixes and connection.version(ApiKey.CREATE_ACLS) < _PATTERNS_SINCE:
            raise InvalidRequest(f"{connection.peer}: prefixes need Kafka 2.0 or later")
        return request

    answer = _ask_any(where, "adding ACLs", checked)
    _check_acls("adding ACLs", "Alter", answer.results)


def remove_acls(where: Where, filters: Sequence[AclFilter]) -> list[Acl]:
    request = DeleteAclsRequest(tuple(DeleteAclsFilter(*each) for each in filters))
    answer = _ask_any(where, "removing ACLs", lambda _: request)
    _check_acls("removing ACLs", "Alter", answer.filter_results)
    removed = [acl for each in answer.filter_results for acl in each.matching_acls]
    _check_acls("removing ACLs", "Alter", removed)
    return sorted({_acl(each.resource_type, each.resource_name, each.pattern_type, each) for each in removed})


def _ask_any(where: Where, doing: str, request: Callable[[Connection], Any]) -> Any:
    def ask(limit: Deadline) -> Any:
        connection = cluster.any_connection(limit)
        return connection.request(request(connection), deadline=limit)

    with cluster_at(where) as cluster:
        return cluster.retrying(doing).run(ask)


def _acl(kind: int, name: str, pattern: int, entry: Any) -> Acl:
    operation, permission = Operation(entry.operation), Permission(entry.permission_type)
    resource = ResourceType(kind), name, PatternType(pattern)
    return Acl(*resource, entry.principal, entry.host, operation, permission)


def _check_acls(doing: str, operation: str, results: Iterable[Any]) -> None:
    failed = [each for each in results if each.error_code != ErrorCode.NONE]
    if failed:
        texts = dict.fromkeys(reason(each.error_code, operation, said=each.error_message) for each in failed)
        raise error_for(failed[0].error_code, f"{doing}: {'; '.join(texts)}")


# --- transactions. Needs Apache Kafka 3.0.

ONGOING = "Ongoing"


class TransactionListing(msgspec.Struct, frozen=True):
    """A transactional id; ``state`` is Empty, Ongoing, Prepare... or Complete... (Commit or Abort)."""

    transactional_id: str
    state: str
    producer_id: int


class TransactionDescription(msgspec.Struct, frozen=True):
    """A transactional id at its coordinator; ``started_ms`` is None without an open transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


def list_transactions(
    where: Where, *, ongoing: bool = False, deadline: Deadline | None = None
) -> list[TransactionListing]:
    """Transactional ids of all brokers by name, or only those with an open transaction."""
    request = ListTransactionsRequest(state_filters=(ONGOING,) if ongoing else ())
    with cluster_at(where) as cluster:
        listings = {
            one.transactional_id: TransactionListing(
                one.transactional_id, one.transaction_state, one.producer_id
            )
            for answer in ask_every_broker(cluster, "listing transactions", request, deadline)
            for one in answer.transaction_states
        }
    return [listings[name] for name in sorted(listings)]


def describe_transaction(
    where: Where, transactional_id: str, *, deadline: Deadline | None = None
) -> TransactionDescription:
    """State, producer and partitions. Raises `ServerError` (TRANSACTIONAL_ID_NOT_FOUND)."""
    kind = CoordinatorType.TRANSACTION
    return at_coordinator(
        where, transactional_id, "describing", partial(_described, transactional_id), deadline, kind
    )


def abort_transaction(
    where: Where, transactional_id: str, *, deadline: Deadline | None = None
) -> TransactionDescription:
    """Abort the id's open transaction and return its description.

    Fences the producer. Returns when the markers are written, so readers of committed records can continue.
    Raises `InvalidTxnState` if no transaction is open, `ServerError` (TRANSACTIONAL_ID_NOT_FOUND).
    """
    with cluster_at(where) as cluster:
        found = describe_transaction(cluster, transactional_id, deadline=deadline)
        if found.state != ONGOING:
            raise InvalidTxnState(
                f"transactional id {transactional_id!r} has no open transaction: its state is {found.state}"
            )
        limit = cluster.limit(deadline)
        TransactionCoordinator(cluster, transactional_id).init_producer(found.timeout_ms, limit)
        return found


def _described(transactional_id: str, connection: Connection, deadline: Deadline) -> TransactionDescription:
    answer = connection.request(DescribeTransactionsRequest((transactional_id,)), deadline=deadline)
    found = next((t for t in answer.transaction_states if t.transactional_id == transactional_id), None)
    if found is None:
        raise InvalidRequest(
            f"{connection.peer}: the DescribeTransactions response lacks {transactional_id!r}"
        )
    if found.error_code != ErrorCode.NONE:
        unknown = found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        denied = reason(found.error_code, "Describe", transactional_id=transactional_id)
        why = "there is no such id" if unknown else denied
        raise error_for(found.error_code, f"{connection.peer}: transactional id {transactional_id!r}: {why}")
    partitions = [TopicPartition(row.topic, number) for row in found.topics for number in row.partitions]
    return TransactionDescription(
        transactional_id,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        found.transaction_start_time_ms if found.transaction_state == ONGOING else None,
        tuple(sorted(partitions)),
    )
