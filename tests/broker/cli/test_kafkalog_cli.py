"""The command line ``kafkalog`` as its users start it, against a real broker."""

from __future__ import annotations

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from tests.support.command_line import kafkalog, table
from tests.support.protocol.raw_client import RawClient, batch


@pytest.fixture
def server(running_broker: EmbeddedBroker) -> str:
    return running_broker.bootstrap_servers


def test_a_topic_is_made_listed_described_and_deleted(server: str, client: RawClient) -> None:
    made = kafkalog(
        *("topics", "create", "of-the-cli", "--partitions", "2", "--replication-factor", "1"),
        *("--config", "retention.ms=60000"),
        server=server,
    )
    assert (made.returncode, made.stdout) == (0, "created of-the-cli\n"), made.stderr
    client.produce("of-the-cli", batch(b"a", b"b", b"c"), 1)

    assert "of-the-cli\t2" in kafkalog("topics", "list", server=server).stdout.splitlines()
    described = kafkalog("topics", "describe", "of-the-cli", server=server).stdout
    assert "retention.ms=60000" in described
    assert table(described) == [["0", "0", "0", "0", "0"], ["1", "0", "0", "3", "3"]]

    altered = kafkalog(
        *("topics", "alter", "of-the-cli", "--partitions", "3"),
        *("--config", "segment.ms=5000", "--delete-config", "retention.ms"),
        server=server,
    )
    assert altered.stdout == "altered of-the-cli\n"
    described = kafkalog("topics", "describe", "of-the-cli", server=server).stdout.splitlines()
    assert described[0].endswith("  segment.ms=5000")
    assert "of-the-cli\t3" in kafkalog("topics", "list", server=server).stdout.splitlines()
    kept = kafkalog("topics", "delete", "of-the-cli", server=server, said="n\n")
    assert kept.returncode == 1
    assert kafkalog("topics", "delete", "of-the-cli", "--yes", server=server).stdout == "deleted of-the-cli\n"
    assert "of-the-cli" not in kafkalog("topics", "list", server=server).stdout


def test_records_are_deleted_up_to_an_offset(server: str, client: RawClient, topic: str) -> None:
    for partition in (0, 1):
        client.produce(topic, batch(b"a", b"b", b"c"), partition)
    delete = ("topics", "delete-records", topic, "--before")
    done = kafkalog(*delete, "0=2", "--before", "1=end", "--yes", server=server)
    assert done.stdout.splitlines() == [f"{topic}-0 begins at offset 2", f"{topic}-1 begins at offset 3"]
    assert [client.offset_at(topic, -2, partition).offset for partition in (0, 1)] == [2, 3]
    beyond = kafkalog(*delete, "0=7", "--yes", server=server)
    assert (beyond.returncode, f"records of {topic}-0 before offset 7" in beyond.stderr) == (1, True)
    assert kafkalog(*delete, "0=3", server=server, said="n\n").returncode == 1
    assert client.offset_at(topic, -2).offset == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("topics", "describe", "not-there"), 1, "kafkalog: topic 'not-there' does not exist"),
        (("topics", "create", "bad/name"), 1, "bad/name"),
        (("topics", "alter", "x"), 2, "--delete-config"),
        (("topics", "delete-records", "x", "--before", "0=-1"), 2, "use 0=1000 or 0=end"),
        (("topics", "delete-records", "x", "--before", "0"), 2, "0"),
        (("topics", "alter", "not-there", "--config", "segment.ms=1"), 1, "not-there"),
        (("topics", "create", "x", "--config", "nonsense"), 2, "'nonsense' is not name=value"),
        (("topics", "create", "x", "--config", "retention.ms=soon"), 2, "retention.ms"),
        (("topics", "create", "x", "--partitions", "0"), 2, "greater than or equal to 1"),
        (("topics", "create", "x", "--replication-factor", "0"), 2, "greater than or equal to 1"),
        (
            ("topics", "create", "x", "--replication-factor", "3"),
            1,
            "topic x: replication factor 3; with 1 broker it can be 1 or -1 only",
        ),
        (("topics", "list", "--bootstrap-server", "nowhere"), 2, "--bootstrap-server: 'nowhere' is not"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(
    server: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = kafkalog(*arguments, server=server)
    assert ran.returncode == code
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_help_shows_an_example() -> None:
    assert "kafkalog topics create flights --partitions 4" in kafkalog("topics", "--help").stdout
