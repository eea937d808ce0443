"""Every message against kio (the versions of Kafka 4) or kafka-python (those that Kafka 4 has dropped)."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
from enum import IntEnum
from typing import Any
from uuid import UUID

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.producer
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from pyspark_kafkalog.protocol.codec import WireStruct, specs
from tests.support.examples import examples
from tests.support.protocol.messages import CASES, Case, by_class, messages

FEW = examples(4, suppress_health_check=list(HealthCheck))

KIO_NAMES = {
    "throttle_time_ms": "throttle_time",
    "timeout_ms": "timeout",
    "max_wait_ms": "max_wait",
    "transaction_timeout_ms": "transaction_timeout",
    "transaction_start_time_ms": "transaction_start_time",
    "retention_time_ms": "retention_time",
    "session_timeout_ms": "session_timeout",
    "rebalance_timeout_ms": "rebalance_timeout",
    "heartbeat_interval_ms": "heartbeat_interval",
    "log_append_time_ms": "log_append_time",
    "session_lifetime_ms": "session_lifetime",
}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def kio_class(case: Case) -> Any:
    package = f"kio.schema.{case.api.key.name.lower()}.v{case.version}"
    return getattr(importlib.import_module(package), case.cls.__name__)


DROPPED_BY_KAFKA_4 = {
    "CREATE_ACLS": range(1),
    "CREATE_TOPICS": range(2),
    "DELETE_ACLS": range(1),
    "DELETE_TOPICS": range(1),
    "DESCRIBE_ACLS": range(1),
    "FETCH": range(4),
    "LIST_OFFSETS": range(1),
    "OFFSET_COMMIT": range(2),
    "OFFSET_FETCH": range(1),
    "PRODUCE": range(3),
}
"""kio has every version but these."""


def plain(value: Any, version: int) -> Any:
    """A message of ours, or a part of one, as dicts, lists and numbers; fields of other versions left out."""
    if isinstance(value, WireStruct):
        return {
            name: plain(getattr(value, name), version)
            for name, spec in specs(value)
            if spec.exists_in(version)
        }
    return plain_value(value, lambda item: plain(item, version))


def plain_kio(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        names = {theirs: ours for ours, theirs in KIO_NAMES.items()}
        out = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            # kio has no object for a time that is not there.
            absent = -1 if field.name == "log_append_time" and item is None else plain_kio(item)
            out[names.get(field.name, field.name)] = absent
        return out
    return plain_value(value, plain_kio)


def plain_kafka_python(value: Any, like: Any, version: int) -> Any:
    """The same fields of an object of kafka-python."""
    if isinstance(like, WireStruct):
        return {
            name: plain_kafka_python(getattr(value, name), getattr(like, name), version)
            for name, spec in specs(like)
            if spec.exists_in(version)
        }
    if isinstance(like, tuple) and value is not None:
        assert len(value) == len(like)
        return [plain_kafka_python(item, other, version) for item, other in zip(value, like, strict=True)]
    return plain_value(value, lambda item: item)


def plain_value(value: Any, convert: Any) -> Any:
    if isinstance(value, tuple | list):
        return [convert(item) for item in value]
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(milliseconds=1)
    if isinstance(value, UUID):
        return None if value.int == 0 else str(value)
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return value


def kafka_python_class(case: Case) -> Any:
    for module in (kafka.protocol.producer, kafka.protocol.consumer, kafka.protocol.admin):
        if hasattr(module, case.cls.__name__):
            return getattr(module, case.cls.__name__)
    raise AssertionError(f"kafka-python has no {case.cls.__name__}")


def in_kio(case: Case) -> bool:
    return case.version not in DROPPED_BY_KAFKA_4.get(case.api.key.name, ())


@by_class(filter(in_kio, CASES))
@FEW
@given(st.data())
def test_kio_reads_ours_and_we_read_kios(cases: list[Case], data: st.DataObject) -> None:
    for case in cases:
        message = data.draw(messages(case.cls, case.version))
        frame = case.frame(message)
        header = case.header_bytes
        theirs, size = entity_reader(kio_class(case))(frame, len(header))
        assert size == len(frame) - len(header)
        assert plain_kio(theirs) == plain(message, case.version)
        out = io.BytesIO()
        entity_writer(kio_class(case))(out, theirs)
        assert case.read(header + out.getvalue()) == message


@by_class(case for case in CASES if not in_kio(case))
@examples(40, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_kafka_python_reads_ours_and_we_read_kafka_pythons(cases: list[Case], data: st.DataObject) -> None:
    for case in cases:
        message = data.draw(messages(case.cls, case.version))
        frame = case.frame(message)
        header = case.header_bytes
        theirs = kafka_python_class(case).decode(frame[len(header) :], version=case.version)
        assert plain_kafka_python(theirs, message, case.version) == plain(message, case.version)
        theirs._header = None  # its decoder leaves this out, its encoder asks for it
        assert case.read(header + bytes(theirs.encode(version=case.version))) == message
