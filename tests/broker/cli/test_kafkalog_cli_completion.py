"""What a shell gets when Tab is pressed after a part of a topic's or a group's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.cli.app import app
from pyspark_kafkalog.types import TopicPartition


def completed(line: str, server: str | None) -> list[str]:
    variables = {
        "_KAFKALOG_COMPLETE": "complete_bash", "COMP_WORDS": f"kafkalog {line}",
        "COMP_CWORD": str(len(line.split(" "))), "KAFKALOG_BOOTSTRAP_SERVER": server,
    }  # fmt: skip
    said = CliRunner().invoke(app, [], env=variables, prog_name="kafkalog")
    assert said.exit_code == 0, said
    return said.output.split()


@pytest.fixture(scope="module")
def server(running_broker: EmbeddedBroker) -> str:
    servers = running_broker.bootstrap_servers
    topics = [kafkalog.NewTopic(name, 1) for name in ("tab-flights", "tab-fares", "tab-x")]
    kafkalog.create_topics(servers, topics)
    kafkalog.commit_offsets(servers, "tab-group", {TopicPartition("tab-x", 0): 0})
    return servers


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("consume tab-f", ["tab-fares", "tab-flights"]),
        ("topics describe tab-fl", ["tab-flights"]),
        ("topics delete tab-x tab-fa", ["tab-fares"]),
        ("load days --topic tab-x", ["tab-x"]),
        ("groups describe tab-", ["tab-group"]),
        ("lag --group tab-", ["tab-group"]),
        ("topics desc", ["describe"]),
    ],
)
def test_names_that_begin_so_are_offered(line: str, names: list[str], server: str) -> None:
    assert completed(line, server) == names


def test_the_servers_of_a_properties_file_are_asked(server: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={server}\nno.such.property=1\n")
    assert completed(f"consume --command-config {file} tab-fl", None) == ["tab-flights"]


def test_without_a_cluster_nothing_is_offered_and_nothing_is_said() -> None:
    assert completed("consume tab-", "127.0.0.1:1") == []
