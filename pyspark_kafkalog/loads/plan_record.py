"""Plans and positions as records, and which partition an entry of a record is of. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark_kafkalog.loads.plan import UNKNOWN, Plan, PlannedPartition, Position, tiles
from pyspark_kafkalog.loads.records import Fields, seal, unseal
from pyspark_kafkalog.types import NO_BROKER, TopicPartition

_PARTITION_FIELDS = (
    "topic_id", "leader", "address", "leader_epoch",
    "start", "end", "earliest", "latest", "reason", "ranges",
)  # fmt: skip


def encode_plan(plan: Plan) -> bytes:
    """The sealed record of a plan."""
    return seal(
        "plan",
        {
            "number": plan.number,
            "parent": plan.parent,
            "created": plan.created,
            "cluster_id": plan.cluster_id,
            "isolation_level": plan.isolation_level,
            "partitions": [
                key_fields(p.key) | {name: getattr(p, name) for name in _PARTITION_FIELDS}
                for p in plan.partitions
            ],
        },
        of_brokers=of_brokers(plan.partitions),
    )


def key_fields(key: TopicPartition) -> dict[str, object]:
    """The fields of a record that say of which partition it, or an entry of it, is."""
    fields: dict[str, object] = {"topic": key.topic, "partition": key.partition}
    return fields if key.broker == NO_BROKER else {**fields, "broker": key.broker}


def of_brokers(entries: Iterable[PlannedPartition | Position]) -> bool:
    """Whether partitions belong to brokers, as in 0.7."""
    return any(one.broker != NO_BROKER for one in entries)


def decode_plan(data: bytes, where: str) -> Plan:
    """The plan in a record.

    Raises:
        DamagedRecord: it is torn or edited, or holds what no plan does.
    """
    values = unseal("plan", data, where)
    fields = Fields(values, where)
    partitions = tuple(_decode_partition(one) for one in fields.entries("partitions"))
    keys = [p.key for p in partitions]
    if keys != sorted(set(keys)):
        raise fields.refuse("its partitions are not in order, or one is there twice")
    return Plan(
        number=fields.number("number", 1),
        parent=fields.number("parent"),
        created=fields.text("created"),
        cluster_id=fields.text("cluster_id"),
        isolation_level=fields.text("isolation_level"),
        partitions=partitions,
        sha256=fields.text("sha256"),
    )


def _decode_partition(fields: Fields) -> PlannedPartition:
    p = PlannedPartition(
        topic=fields.text("topic"),
        partition=fields.number("partition"),
        topic_id=fields.text("topic_id"),
        leader=fields.number("leader", UNKNOWN),
        address=fields.text("address"),
        leader_epoch=fields.number("leader_epoch", UNKNOWN),
        start=fields.number("start"),
        end=fields.number("end"),
        earliest=fields.number("earliest", UNKNOWN),
        latest=fields.number("latest", UNKNOWN),
        reason=fields.text("reason"),
        ranges=fields.pairs("ranges"),
        broker=fields.broker(),
    )
    if not tiles(p.ranges, p.start, p.end):
        raise fields.refuse(f"the ranges {list(p.ranges)} do not tile [{p.start}, {p.end})")
    return p


def encode_position(position: Position) -> dict[str, object]:
    """A position as an entry of a commit record."""
    return key_fields(position.key) | {
        name: getattr(position, name) for name in ("topic_id", "next", "leader", "address")
    }


def decode_position(fields: Fields) -> Position:
    """The position in an entry of a commit record."""
    return Position(
        topic=fields.text("topic"),
        partition=fields.number("partition"),
        topic_id=fields.text("topic_id"),
        next=fields.number("next"),
        leader=fields.number("leader", UNKNOWN),
        address=fields.text("address"),
        broker=fields.broker(),
    )
