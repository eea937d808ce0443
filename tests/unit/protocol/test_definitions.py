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

NULL_BY_DEFAULT = "ours is null unless set; Kafka's is empty"
DEFAULTS = {
    "ListOffsetsRequest.replica_id": "a consumer's; Kafka has no default",
    "MetadataRequest.topics": NULL_BY_DEFAULT,
    "MetadataRequestTopic.name": NULL_BY_DEFAULT,
    "MetadataResponseTopic.name": NULL_BY_DEFAULT,
    "PartitionData.aborted_transactions": NULL_BY_DEFAULT,
    "PartitionData.records": NULL_BY_DEFAULT,
    "PartitionProduceData.records": NULL_BY_DEFAULT,
    "CreatableTopicConfig.value": NULL_BY_DEFAULT,
    "CreatableTopicConfigs.value": NULL_BY_DEFAULT,
    "CreatableTopicResult.error_message": NULL_BY_DEFAULT,
    "DeletableTopicResult.name": NULL_BY_DEFAULT,
    "CreatePartitionsTopic.assignments": NULL_BY_DEFAULT,
    "ComponentData.match": NULL_BY_DEFAULT,
    "DescribeClientQuotasResponse.entries": NULL_BY_DEFAULT,
    "DescribeClientQuotasResponse.error_message": NULL_BY_DEFAULT,
    "DescribeLogDirsRequest.topics": NULL_BY_DEFAULT,
    "EntityData.entity_name": NULL_BY_DEFAULT,
    "DescribeConfigsResource.configuration_keys": NULL_BY_DEFAULT,
    "DescribeConfigsResourceResult.documentation": NULL_BY_DEFAULT,
    "AlterableConfig.value": NULL_BY_DEFAULT,
    "AlterConfigsResourceResponse.error_message": NULL_BY_DEFAULT,
    "DescribeConfigsResourceResult.value": NULL_BY_DEFAULT,
    "MemberResponse.group_instance_id": NULL_BY_DEFAULT,
    "DescribeConfigsResult.error_message": NULL_BY_DEFAULT,
    "DescribeConfigsSynonym.value": NULL_BY_DEFAULT,
    "InitProducerIdRequest.transactional_id": NULL_BY_DEFAULT,
    "Coordinator.error_message": NULL_BY_DEFAULT,
    "FindCoordinatorResponse.error_message": NULL_BY_DEFAULT,
    "SaslAuthenticateResponse.error_message": NULL_BY_DEFAULT,
    "DescribeAclsRequest.resource_name_filter": NULL_BY_DEFAULT,
    "DescribeAclsRequest.principal_filter": NULL_BY_DEFAULT,
    "DescribeAclsRequest.host_filter": NULL_BY_DEFAULT,
    "DescribeAclsResponse.error_message": NULL_BY_DEFAULT,
    "AclCreationResult.error_message": NULL_BY_DEFAULT,
    "DeleteAclsFilter.resource_name_filter": NULL_BY_DEFAULT,
    "DeleteAclsFilter.principal_filter": NULL_BY_DEFAULT,
    "DeleteAclsFilter.host_filter": NULL_BY_DEFAULT,
    "DeleteAclsFilterResult.error_message": NULL_BY_DEFAULT,
    "DeleteAclsMatchingAcl.error_message": NULL_BY_DEFAULT,
    "AlterUserScramCredentialsResult.error_message": NULL_BY_DEFAULT,
    "DescribeUserScramCredentialsRequest.users": NULL_BY_DEFAULT,
    "DescribeUserScramCredentialsResponse.error_message": NULL_BY_DEFAULT,
    "DescribeUserScramCredentialsResult.error_message": NULL_BY_DEFAULT,
    "OffsetFetchRequest.topics": NULL_BY_DEFAULT,
    "OffsetFetchRequestGroup.topics": NULL_BY_DEFAULT,
}
IGNORABLE = {
    "ListOffsetsPartitionResponse.leader_epoch": "lets one answer serve all versions",
    "PartitionProduceResponse.current_leader": "lets one answer serve all versions",
    "ProduceResponse.node_endpoints": "lets one answer serve all versions",
}


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
    return TYPES.get(kind) or str(kind.__name__)


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
    assert [name for name, _, _ in ours] == [snake(row["name"]) for row in wanted], cls
    count = len(ours)
    for (name, spec, default), row in zip(ours, wanted, strict=True):
        where = f"{cls.__name__}.{name}"
        held = {v for v in range(api.versions.min, api.versions.max + 1) if spec.exists_in(v)}
        assert held == versions_in(row["versions"], api), where
        nullable = versions_in(row.get("nullableVersions", "99+"), api)
        assert {v for v in held if spec.nullable_in(v)} == nullable & held, where
        assert spec.tag == row.get("tag"), where
        assert type_name(spec.type) == row["type"], where
        assert spec.ignorable == row.get("ignorable", False) or where in IGNORABLE or held >= asked, where
        element = spec.type.element if isinstance(spec.type, Array) else spec.type
        if isinstance(element, type):
            inner = row.get("fields") or common[row["type"].removeprefix("[]")]
            count += check_struct(element, inner, api, common, held)
            if not isinstance(spec.type, Array):
                assert default == element(), where
                continue
        if where not in DEFAULTS:
            assert default == default_of(row), where
        elif DEFAULTS[where] is NULL_BY_DEFAULT:
            assert default is None, where
            assert nullable, where
    return count


def all_of(api: Api) -> set[int]:
    return set(range(api.versions.min, api.versions.max + 1))


@pytest.mark.long("many megabytes, or many cases")
@pytest.mark.parametrize(("api", "cls"), MESSAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_field_is_as_kafka_defines_it(api: Api, cls: Any) -> None:
    json_of = definition(cls)
    assert json_of["apiKey"] == api.key
    never = api.first_flexible == NEVER_FLEXIBLE
    assert json_of["flexibleVersions"] == ("none" if never else f"{api.first_flexible}+")
    common = {struct["name"]: struct["fields"] for struct in json_of.get("commonStructs", [])}
    assert check_struct(cls, json_of["fields"], api, common, all_of(api)) >= len(json_of["fields"]) - 3


def test_our_defaults_differ_from_kafkas_only_where_it_is_said() -> None:
    names = {f"{cls.__name__}.{name}" for cls in all_structs() for name, _, _ in specs(cls)}
    assert set(DEFAULTS) | set(IGNORABLE) <= names


def test_error_codes_are_read_as_such() -> None:
    """Every int16 called error_code; Kafka's definitions have no type for them."""
    found = {
        f"{cls.__name__}.{name}"
        for cls in all_structs()
        for name, spec, default in specs(cls)
        if name.endswith("error_code") and (spec.type is not ERROR_CODE or default is not ErrorCode.NONE)
    }
    assert found == set()


def all_structs() -> set[Any]:
    found: set[Any] = set()
    left = [cls for _, cls in MESSAGES]
    while left:
        cls = left.pop()
        found.add(cls)
        for _, spec, _ in specs(cls):
            element = spec.type.element if isinstance(spec.type, Array) else spec.type
            if isinstance(element, type):
                left.append(element)
    return found
