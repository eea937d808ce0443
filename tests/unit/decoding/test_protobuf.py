"""Protobuf values, by descriptors as protoc writes them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from pyspark_kafkalog.decoding.protobuf_decoder import ProtobufDecoder, ProtobufFormat
from pyspark_kafkalog.errors import InvalidConfig

FIELD = descriptor_pb2.FieldDescriptorProto


def descriptors() -> bytes:
    """``message Other {}  message Flight { ...; message Leg { string to = 1; } }``, syntax proto3."""
    file = descriptor_pb2.FileDescriptorProto(
        name="flight.proto", package="air", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.message_type.add(name="Other")
    flight = file.message_type.add(name="Flight")
    flight.nested_type.add(name="Leg").field.add(
        name="to", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL
    )
    entry = flight.nested_type.add(name="SeatsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=FIELD.TYPE_INT32, label=FIELD.LABEL_OPTIONAL)
    state = flight.enum_type.add(name="State")
    state.value.add(name="PLANNED", number=0)
    state.value.add(name="LANDED", number=1)
    for number, (name, kind, type_name, repeated) in enumerate(
        [
            ("carrier", FIELD.TYPE_STRING, "", False), ("delay", FIELD.TYPE_SINT32, "", False),
            ("id", FIELD.TYPE_UINT64, "", False), ("state", FIELD.TYPE_ENUM, ".air.Flight.State", False),
            ("legs", FIELD.TYPE_MESSAGE, ".air.Flight.Leg", True),
            ("seats", FIELD.TYPE_MESSAGE, ".air.Flight.SeatsEntry", True),
            ("at", FIELD.TYPE_MESSAGE, ".google.protobuf.Timestamp", False),
        ],
        start=1,
    ):  # fmt: skip
        label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
        flight.field.add(name=name, number=number, type=kind, type_name=type_name or None, label=label)
    whole = descriptor_pb2.FileDescriptorSet()
    whole.file.add().ParseFromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    whole.file.append(file)
    return whole.SerializeToString()


def new(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def rows(found: pa.Array) -> list[tuple[Any, Any]]:
    return [(row["value"], row["reason"]) for row in found.to_pylist()]


def test_messages_are_structs_and_what_is_none_has_a_reason() -> None:
    flight = new("air.Flight")(
        carrier="AA", delay=-3, id=(1 << 64) - 1, state=1, legs=[{"to": "JFK"}, {"to": "LAX"}],
        seats={"a": 2}, at=dt.datetime(1970, 1, 1, 0, 0, 1, 5),
    )  # fmt: skip
    body, header = flight.SerializeToString(), b"\0\0\0\0\1"
    values = [
        header + b"\2\2" + body, header + b"\0" + body, header + b"\2\2" + body[:-3], b"\1" + body,
        header + b"\2\2", None,
    ]  # fmt: skip
    decode = ProtobufDecoder(ProtobufFormat(descriptors(), "air.Flight"))
    found = rows(decode(pa.array(values, pa.binary())))
    assert found[0] == (
        {
            "carrier": "AA", "delay": -3, "id": Decimal((1 << 64) - 1), "state": "LANDED",
            "legs": [{"to": "JFK"}, {"to": "LAX"}], "seats": [("a", 2)],
            "at": dt.datetime(1970, 1, 1, 0, 0, 1, 5, dt.timezone.utc),
        },
        None,
    )  # fmt: skip
    assert found[1] == (None, "message [0] of its file, where air.Flight is [1]")
    assert found[2][1].startswith("not a air.Flight: ")
    assert found[3][1].startswith("no Confluent header")
    assert found[4][0] == {
        "carrier": "", "delay": 0, "id": 0, "state": "PLANNED", "legs": [], "seats": [], "at": None
    }  # fmt: skip
    assert found[5] == (None, None)


def test_a_nested_message_has_its_path() -> None:
    leg = new("air.Flight.Leg")(to="JFK").SerializeToString()
    decode = ProtobufDecoder(ProtobufFormat(descriptors(), "air.Flight.Leg"))
    assert rows(decode(pa.array([b"\0\0\0\0\1\4\2\0" + leg], pa.binary()))) == [({"to": "JFK"}, None)]
    bare = ProtobufDecoder(ProtobufFormat(descriptors(), "air.Flight.Leg", framed=False))
    assert rows(bare(pa.array([leg], pa.binary()))) == [({"to": "JFK"}, None)]


def test_descriptors_without_the_message_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"no message 'air\.Nobody' in the descriptors"):
        ProtobufDecoder(ProtobufFormat(descriptors(), "air.Nobody"))
    with pytest.raises(InvalidConfig, match="no message"):
        ProtobufDecoder(ProtobufFormat(b"\xff\xff", "air.Flight"))
