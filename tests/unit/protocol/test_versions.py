"""The list of APIs and versions, and that docs/protocol.md says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import broker.server.handlers  # noqa: F401  (fills the registry)
from broker.server.dispatch import REGISTRY
from pyspark_kafkalog.protocol.exchange import APIS, NEVER_FLEXIBLE, ApiKey, VersionRange, api_of

TABLE = {
    # key: (name, oldest, newest, first flexible)
    0: ("PRODUCE", 0, 12, 9),
    1: ("FETCH", 0, 13, 12),
    2: ("LIST_OFFSETS", 0, 7, 6),
    3: ("METADATA", 0, 12, 9),
    8: ("OFFSET_COMMIT", 0, 9, 8),
    9: ("OFFSET_FETCH", 0, 9, 6),
    10: ("FIND_COORDINATOR", 0, 4, 3),
    11: ("JOIN_GROUP", 0, 9, 6),
    12: ("HEARTBEAT", 0, 4, 4),
    13: ("LEAVE_GROUP", 0, 5, 4),
    14: ("SYNC_GROUP", 0, 5, 4),
    15: ("DESCRIBE_GROUPS", 0, 6, 5),
    16: ("LIST_GROUPS", 0, 5, 3),
    17: ("SASL_HANDSHAKE", 0, 1, NEVER_FLEXIBLE),
    18: ("API_VERSIONS", 0, 4, 3),
    19: ("CREATE_TOPICS", 0, 7, 5),
    20: ("DELETE_TOPICS", 0, 6, 4),
    21: ("DELETE_RECORDS", 0, 2, 2),
    22: ("INIT_PRODUCER_ID", 0, 5, 2),
    23: ("OFFSET_FOR_LEADER_EPOCH", 2, 4, 4),
    24: ("ADD_PARTITIONS_TO_TXN", 0, 4, 3),
    25: ("ADD_OFFSETS_TO_TXN", 0, 4, 3),
    26: ("END_TXN", 0, 5, 3),
    27: ("WRITE_TXN_MARKERS", 1, 1, 1),
    28: ("TXN_OFFSET_COMMIT", 0, 5, 3),
    29: ("DESCRIBE_ACLS", 0, 3, 2),
    30: ("CREATE_ACLS", 0, 3, 2),
    31: ("DELETE_ACLS", 0, 3, 2),
    32: ("DESCRIBE_CONFIGS", 1, 4, 4),
    33: ("ALTER_CONFIGS", 0, 2, 2),
    35: ("DESCRIBE_LOG_DIRS", 1, 4, 2),
    36: ("SASL_AUTHENTICATE", 0, 2, 2),
    37: ("CREATE_PARTITIONS", 0, 3, 2),
    42: ("DELETE_GROUPS", 0, 2, 2),
    44: ("INCREMENTAL_ALTER_CONFIGS", 0, 1, 1),
    47: ("OFFSET_DELETE", 0, 0, NEVER_FLEXIBLE),
    48: ("DESCRIBE_CLIENT_QUOTAS", 0, 1, 1),
    50: ("DESCRIBE_USER_SCRAM_CREDENTIALS", 0, 0, 0),
    51: ("ALTER_USER_SCRAM_CREDENTIALS", 0, 0, 0),
    60: ("DESCRIBE_CLUSTER", 0, 1, 0),
    61: ("DESCRIBE_PRODUCERS", 0, 0, 0),
    65: ("DESCRIBE_TRANSACTIONS", 0, 0, 0),
    66: ("LIST_TRANSACTIONS", 0, 1, 0),
    68: ("CONSUMER_GROUP_HEARTBEAT", 0, 1, 0),
    69: ("CONSUMER_GROUP_DESCRIBE", 0, 1, 0),
}


def test_the_tables_hold_these_apis_in_these_versions() -> None:
    held = {int(api.key): (api.key.name, *api.versions, api.first_flexible) for api in APIS.values()}
    assert held == TABLE
    assert [int(key) for key in ApiKey] == sorted(TABLE)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_an_api_has_a_request_and_a_response_of_its_name(api: object) -> None:
    name = "".join(word.capitalize() for word in api.key.name.split("_"))  # type: ignore[attr-defined]
    assert api.request.__name__ == f"{name}Request"  # type: ignore[attr-defined]
    assert api.response.__name__ == f"{name}Response"  # type: ignore[attr-defined]
    assert api_of(api.request) is api_of(api.response) is api  # type: ignore[attr-defined]


def test_a_version_range_holds_both_of_its_ends() -> None:
    versions = VersionRange(3, 5)
    assert [version in versions for version in (2, 3, 4, 5, 6)] == [False, True, True, True, False]
    assert "3" not in versions


def documented() -> dict[int, tuple[str, tuple[int, int], int]]:
    """Key to name, versions, and first flexible version."""
    text = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \| (\d+|never) \|", text, re.MULTILINE)
    return {
        int(key): (name, (int(low), int(high)), NEVER_FLEXIBLE if flexible == "never" else int(flexible))
        for key, name, low, high, flexible in rows
    }


def test_the_documentation_has_the_same_table() -> None:
    rows = {key: (name, *held, flexible) for key, (name, held, flexible) in documented().items()}
    assert rows == {key: (row[0].title().replace("_", ""), *row[1:]) for key, row in TABLE.items()}


def test_the_broker_serves_what_the_documentation_says() -> None:
    served = {int(key): entry.versions for key, entry in REGISTRY.items()}
    assert served == {key: held for key, (_, held, _) in documented().items()}
