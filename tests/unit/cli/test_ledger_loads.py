"""The loads of a ledger, as the page and ``kafkalog top`` show them of a cluster."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from pyspark_kafkalog.cli.dashboard import LedgerLoads
from pyspark_kafkalog.client.discovery import ClusterMetadata, PartitionMetadata, TopicMetadata
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, UnsafeStore
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.status.snapshot import PartitionStatus
from pyspark_kafkalog.types import decode_id
from tests.support.ledger.plans import P0, TOPIC_ID, facts, loaded

KNOWN = {P0: PartitionStatus(0, 1, 0, 30)}


def cluster(topic_id: UUID, cluster_id: str | None = "here") -> ClusterMetadata:
    topic = TopicMetadata("clicks", topic_id, ErrorCode.NONE, {0: PartitionMetadata(1, 0)})
    return ClusterMetadata(cluster_id, 1, {}, {"clicks": topic})


OURS = cluster(decode_id(TOPIC_ID))


def load(place: Path, name: str, cluster_id: str) -> Ledger:
    """A load that has read 10 offsets of a cluster's topic."""
    ledger = Ledger.at(place, name)
    ledger.identify(cluster_id, {"subscribe": "clicks"})
    loaded(ledger, {P0: facts(0, 10)})
    return ledger


def lags(place: Path, metadata: ClusterMetadata) -> tuple[dict[str, int | None], list[str]]:
    problems: list[str] = []
    return {one.name: one.lag for one in LedgerLoads(str(place)).take(metadata, KNOWN, problems)}, problems


def test_the_lag_of_a_load_is_up_to_the_end_of_its_topic(tmp_path: Path) -> None:
    load(tmp_path, "nightly", "here")
    load(tmp_path, "of-old-brokers", "")
    assert lags(tmp_path, OURS) == ({"nightly": 20, "of-old-brokers": 20}, [])
    assert lags(tmp_path, cluster(UUID(int=0)))[0]["nightly"] == 20, "brokers without topic ids"


def test_a_load_of_another_cluster_or_topic_has_no_lag_here(tmp_path: Path) -> None:
    load(tmp_path, "elsewhere", "there")
    load(tmp_path, "nightly", "here")
    assert lags(tmp_path, OURS)[0] == {"elsewhere": None, "nightly": 20}
    made_new = cluster(UUID(int=7))
    assert lags(tmp_path, made_new)[0] == {"elsewhere": None, "nightly": None}
    assert lags(tmp_path, ClusterMetadata("here", 1, {}, {}))[0] == {"elsewhere": None, "nightly": None}
    assert lags(tmp_path, cluster(decode_id(TOPIC_ID), None))[0] == {"elsewhere": None, "nightly": None}


def test_a_damaged_ledger_hides_no_other(tmp_path: Path) -> None:
    damaged = load(tmp_path, "a", "here")
    load(tmp_path, "b", "here")
    (commit,) = (tmp_path / "a" / "commits").iterdir()
    commit.write_text("garbage")
    found, problems = lags(tmp_path, OURS)
    assert found == {"b": 20}
    (problem,) = problems
    assert problem.startswith(f"load a: {damaged.location}/commits/00000001.json is torn")


def test_a_place_that_does_not_exist_is_refused_and_one_without_ledgers_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=f"--ledger={tmp_path}/nope: there is no such directory"):
        LedgerLoads(str(tmp_path / "nope"))
    with pytest.raises(UnsafeStore, match="foo"):
        LedgerLoads("foo://x")
    assert lags(tmp_path, OURS) == ({}, [f"loads: there is no ledger at {tmp_path}"])
