"""Our field tables against Kafka's message definitions, which kafka-python carries with it."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import pytest

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.codec import (
    BOOL,
    BYTES,
    ERROR_CODE,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID_TYPE,
    Array,
    specs,
)
from pyspark_kafkalog.protocol.exchange import APIS, NEVER_FLEXIBLE, Api, ApiKey
from pyspark_kafkalog.protocol.primitives import ZERO_UUID

NOT_CARRIED = {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE}
"""kio alone has these two: see the property tests of the protocol."""

MESSAGES = [
    (api, cls) for api in APIS.values() if api.key not in NOT_CARRIED for cls in (api.request, api.response)
]

TYPES = {
    BOOL: "bool",
    INT8: "int8",
    INT16: "int16",
    INT32: "int32",
    INT64: "int64",
    FLOAT64: "float64",
    STRING: "string",
    UUID_TYPE: "uuid",
    RECORDS: "records",
    BYTES: "bytes",
}

IGNORABLE = {
    "ListOffsetsPartitionResponse.leader_epoch": "lets one answer serve all versions",
    "PartitionProduceResponse.current_leader": "lets one answer serve all versions",
    "ProduceResponse.node_endpoints": "lets one answer serve all versions",
}


RENAMED = {
    "IncrementalAlterConfigsResource": "AlterConfigsResource",
    "ElectTopicPartitions": "TopicPartitions",
    "IncrementalAlterableConfig": "AlterableConfig",
    "ListedTransaction": "TransactionState",
    "NamedTopic": "TopicRequest",
}
"""Structs whose name in Kafka is that of another one of their theme."""


def definition(cls: Any) -> Any:
    text = (files("kafka.protocol.schemas.resources") / f"{cls.__name__}.json").read_text("utf-8")
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def versions_in(text: str, api: Api) -> set[int]:
    """The versions of a definition's text that our tables hold."""
    low, _, high = text.partition("-")
    oldest = int(low.rstrip("+"))
    newest = api.versions.max if text.endswith("+") else int(high or low)
    return {v for v in range(oldest, newest + 1) if v in api.versions}


def type_name(kind: Any) -> str:
    if isinstance(kind, Array):
        return "[]" + type_name(kind.element)
    if kind is ERROR_CODE:
        return "int16"
    return TYPES.get(kind) or RENAMED.get(kind.__name__, str(kind.__name__))


def default_of(row: Any) -> Any:
    kind = row["type"]
    if "default" not in row:
        if kind.startswith("[]"):
            return ()
        return {"string": "", "bool": False, "bytes": b"", "uuid": ZERO_UUID, "records": ()}.get(kind, 0)
    text = str(row["default"])
    if text == "null":
        return None
    if kind == "bool":
        return text == "true"
    return text if kind == "string" else int(text, 0)


def check_struct(cls: Any, rows: list[Any], api: Api, common: dict[str, Any], asked: set[int]) -> int:
    """Compare a class with its definition in the versions ``asked``; how many fields there are."""
    wanted = [row for row in rows if versions_in(row.get("versions", row.get("taggedVersions")), api)]
    ours = list(specs(cls))
    assert [name for name, _ in ours] == [snake(row["name"]) for row in wanted], cls
    count = len(ours)
    for (name, spec), row in zip(ours, wanted, strict=True):
        where = f"{cls.__name__}.{name}"
        held = {v for v in range(api.versions.min, api.versions.max + 1) if spec.exists_in(v)}
        assert held == versions_in(row["versions"], api), where
        nullable = versions_in(row.get("nullableVersions", "99+"), api)
        assert {v for v in held if spec.nullable_in(v)} == nullable & held, where
        assert spec.tag == row.get("tag"), where
        assert type_name(spec.type) == row["type"], where
        if name.endswith("error_code"):  # an int16 to Kafka's definitions, which have no type for them
            assert spec.type is ERROR_CODE, where
            assert spec.default is ErrorCode.NONE, where
        assert spec.ignorable == row.get("ignorable", False) or where in IGNORABLE or held >= asked, where
        element = spec.type.element if isinstance(spec.type, Array) else spec.type
        if isinstance(element, type):
            inner = row.get("fields") or common[row["type"].removeprefix("[]")]
            count += check_struct(element, inner, api, common, held)
            if not isinstance(spec.type, Array):
                assert spec.default == (None if row.get("default") == "null" else element()), where
                continue
        # Ours is null where Kafka's is empty and null is allowed; a request for offsets is a consumer's.
        if spec.default is not None or not nullable:
            expected = -1 if where == "ListOffsetsRequest.replica_id" else default_of(row)
            assert spec.default == expected, where
    return count


def all_of(api: Api) -> set[int]:
    return set(range(api.versions.min, api.versions.max + 1))


@pytest.mark.parametrize(("api", "cls"), MESSAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_field_is_as_kafka_defines_it(api: Api, cls: Any) -> None:
    json_of = definition(cls)
    assert json_of["apiKey"] == api.key
    never = api.first_flexible == NEVER_FLEXIBLE
    assert json_of["flexibleVersions"] == ("none" if never else f"{api.first_flexible}+")
    common = {struct["name"]: struct["fields"] for struct in json_of.get("commonStructs", [])}
    assert check_struct(cls, json_of["fields"], api, common, all_of(api)) >= len(json_of["fields"]) - 3
