"""OpenLineage events of loads, as its own client writes them into a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.ledger.commit import LoadOutput
from pyspark_kafkalog.ledger.load_events import _client, dataset_name
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.local_lake import FileLake
from tests.support.protocol.raw_client import RawClient


@pytest.fixture
def lake(running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path) -> FileLake:
    return FileLake(running_broker.bootstrap_servers, Topic(client, topic), tmp_path)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(tmp_path / "events"))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "nightly")
    return tmp_path / "events"


def events_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_load_tells_what_it_read_and_wrote(lake: FileLake, file: Path) -> None:
    lake.run()
    begun, completed = events_in(file)
    assert (begun["eventType"], completed["eventType"]) == ("START", "COMPLETE")
    assert begun["run"]["runId"] == completed["run"]["runId"]
    for event in (begun, completed):
        assert (event["job"]["namespace"], event["job"]["name"]) == ("nightly", "events")
        (source,) = event["inputs"]
        assert source["namespace"] == f"kafka://{lake.options['kafka.bootstrap.servers']}"
        assert source["name"] == lake.options["subscribe"]
    (table,) = completed["outputs"]
    assert (table["namespace"], table["name"]) == ("file", str(lake.table))
    head = lake.ledger.head()
    assert head is not None
    statistics = table["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (15, 2)
    assert statistics["size"] == sum(each.bytes for each in head.outputs[0].files)
    lake.run()  # nothing is new
    assert len(events_in(file)) == 2


def test_a_load_that_fails_or_is_given_up_says_so(lake: FileLake, file: Path) -> None:
    with (
        pytest.raises(ValueError, match="no room"),
        kafkalog.load(None, name="events", offsets=lake.offsets, **lake.options),
    ):
        raise ValueError("no room")
    with kafkalog.load(None, name="events", offsets=lake.offsets, **lake.options) as load:
        load.keep()
    with (
        pytest.raises(kafkalog.LoadError, match="its block wrote nothing"),
        kafkalog.load(None, name="events", offsets=lake.offsets, **lake.options),
    ):
        pass
    events = events_in(file)
    assert [event["eventType"] for event in events] == ["START", "FAIL", "START", "ABORT", "START", "FAIL"]
    assert events[1]["run"]["facets"]["errorMessage"]["message"] == "ValueError: no room"
    assert events[5]["run"]["facets"]["errorMessage"]["message"].startswith("LoadError: load 1 of events")


def test_a_load_does_not_fail_of_a_receiver_that_is_away(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
    assert lake.run().number == 1
    said = [
        each.getMessage() for each in caplog.records if each.name == "pyspark_kafkalog.ledger.load_events"
    ]
    assert [text.partition(" of load events was not sent: ")[0] for text in said] == [
        "the OpenLineage event START",
        "the OpenLineage event COMPLETE",
    ]


def test_a_configuration_that_cannot_be_looked_for_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> bool:
        raise PermissionError(13, "denied")

    monkeypatch.setattr("pyspark_kafkalog.ledger.load_events.Path.exists", denied)
    assert _client() is None


def test_a_wrong_configuration_is_told_and_nothing_else_happens(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "no such")
    assert lake.run().number == 1
    assert "no OpenLineage events are sent" in caplog.text


@pytest.mark.parametrize(
    ("path", "evidence", "names"),
    [
        ("/lake/flights", {}, ("file", "/lake/flights")),
        ("file:///lake/flights", {}, ("file", "/lake/flights")),
        ("s3://lake/flights", {}, ("s3://lake", "flights")),
        ("abfss://a@b.dfs.core.windows.net/x/y", {}, ("abfss://a@b.dfs.core.windows.net", "x/y")),
        ("postgresql://db/lake", {"table": "dw.flights"}, ("postgresql://db", "lake.dw.flights")),
        ("sqlite:////lake/db", {"table": "flights"}, ("sqlite:///lake/db", "flights")),
        ("dw.flights", {}, ("kafkalog", "dw.flights")),
    ],
)
def test_a_table_is_named_by_its_store_and_its_path(
    path: str, evidence: dict[str, str | int], names: tuple[str, str]
) -> None:
    assert dataset_name(LoadOutput(path, evidence=evidence)) == names
