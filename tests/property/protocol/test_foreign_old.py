"""Versions that Kafka 4 has dropped, and those next to them, against aiokafka, which has each by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import aiokafka.protocol.admin
import aiokafka.protocol.commit
import aiokafka.protocol.fetch
import aiokafka.protocol.metadata
import aiokafka.protocol.offset
import aiokafka.protocol.produce
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pyspark_kafkalog.protocol.codec import specs
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.examples import examples
from tests.support.protocol.messages import CASES, Case, by_class, messages

FEW = examples(20, suppress_health_check=list(HealthCheck))
MODULES = {
    ApiKey.PRODUCE: aiokafka.protocol.produce,
    ApiKey.FETCH: aiokafka.protocol.fetch,
    ApiKey.LIST_OFFSETS: aiokafka.protocol.offset,
    ApiKey.METADATA: aiokafka.protocol.metadata,
    ApiKey.OFFSET_COMMIT: aiokafka.protocol.commit,
    ApiKey.OFFSET_FETCH: aiokafka.protocol.commit,
    ApiKey.CREATE_TOPICS: aiokafka.protocol.admin,
}
OLD = [case for case in CASES if case.api.key in MODULES and case.version <= 3]


def theirs_of(case: Case) -> Any:
    name = case.cls.__name__.replace("ListOffsets", "Offset")
    return getattr(MODULES[case.api.key], f"{name}_v{case.version}")


def in_order(value: Any, version: int) -> Any:
    """A message of ours as what aiokafka has: tuples of fields in the order of the wire."""
    if dataclasses.is_dataclass(value):
        there = [name for name, spec, _ in specs(value) if spec.exists_in(version)]
        fields = tuple(in_order(getattr(value, name), version) for name in there)
        # What an array holds is a tuple only where it has several fields.
        return fields if len(fields) != 1 else fields[0]
    if isinstance(value, tuple):
        return [in_order(item, version) for item in value]
    return bytes(value) if isinstance(value, memoryview) else value


def fields_of(message: Any) -> Any:
    values = tuple(getattr(message, name) for name in message.SCHEMA.names)
    return values if len(values) != 1 else values[0]


@by_class(OLD)
@FEW
@given(st.data())
def test_aiokafka_reads_ours_and_we_read_aiokafkas(cases: list[Case], data: st.DataObject) -> None:
    for case in cases:
        message = data.draw(messages(case.cls, case.version))
        frame, header = case.frame(message), case.header_bytes
        theirs = theirs_of(case).decode(frame[len(header) :])
        assert fields_of(theirs) == in_order(message, case.version)
        assert theirs.encode() == frame[len(header) :]
        assert case.read(header + theirs.encode()) == message


def test_every_version_that_kafka_4_has_dropped_is_among_them() -> None:
    held = {(case.api.key.name, case.version) for case in OLD}
    dropped = {
        "PRODUCE": range(3),
        "FETCH": range(4),
        "LIST_OFFSETS": range(1),
        "OFFSET_COMMIT": range(2),
        "OFFSET_FETCH": range(1),
        "CREATE_TOPICS": range(2),
    }
    assert {(name, version) for name, versions in dropped.items() for version in versions} <= held
