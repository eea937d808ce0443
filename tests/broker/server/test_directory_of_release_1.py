"""A data directory of release 1 is served as it was, after a stop and after a kill, and continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kafkalog_broker.cli import main
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ResourceType,
)
from pyspark_kafkalog.protocol.api.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from pyspark_kafkalog.protocol.api.logins import DescribeUserScramCredentialsRequest
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
from tests.support.command_line import kafkalog
from tests.support.protocol.raw_client import RawClient, batch, decode
from tests.support.protocol.wire07 import EARLIEST, LATEST, Wire07, entry, fetch, offsets, offsets_in, produce
from tests.support.release_1 import BROKER_PROPERTIES, RELEASE_1, copied, facts
from tests.support.until import until

WITHOUT_GAPS = ("flights", "codecs", "sequences", "sets-v0", "sets-v1", "stored-as-v1", "append-time")
TOPICS = (*WITHOUT_GAPS, "old", "newest", "transactions")
CUT = 50
"""Bytes of an append that was cut short, in the directory of the killed broker."""


class Restarted(NamedTuple):
    """A broker on a copy of a directory of release 1."""

    server: EmbeddedBroker
    written: Path
    """The directory as it was written."""


@pytest.fixture(scope="module", params=["stopped", "killed"])
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restarted]:
    directory = copied(request.param, tmp_path_factory.mktemp("release-1"))
    with start_broker(BROKER_PROPERTIES, data_dir=directory) as server:
        yield Restarted(server, RELEASE_1 / request.param)
        assert "ERROR" not in server.log_file.read_text()


@pytest.fixture
def client(restarted: Restarted) -> Iterator[RawClient]:
    with RawClient(restarted.server.port) as client:
        yield client


@pytest.fixture
def first(restarted: Restarted) -> Iterator[Wire07]:
    with Wire07(restarted.server.port_of("KAFKA07")) as wire:
        yield wire


def stored(restarted: Restarted, topic: str, partition: int) -> bytes:
    """A partition's segments as they were written, one after the other."""
    place = restarted.written / f"{topic}_{partition}"
    data = b"".join(path.read_bytes() for path in sorted(place.glob("*.kafka")))
    cut = restarted.written.name == "killed" and (topic, partition) == ("flights", 0)
    return data[: -CUT if cut else None]


@pytest.mark.long("every directory of release 1")
def test_what_was_left_is_sound(restarted: Restarted, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-log", str(restarted.written)]) == 0
    told = capsys.readouterr().out
    assert ("torn tail" in told) == (restarted.written.name == "killed")


@pytest.mark.long("every directory of release 1")
@pytest.mark.parametrize("topic", TOPICS)
def test_every_record_is_read_as_it_was(restarted: Restarted, topic: str) -> None:
    words = ("--format", "json", "--isolation-level", "read_committed")
    ran = kafkalog("consume", topic, *words, server=restarted.server.bootstrap_servers)
    assert ran.returncode == 0
    assert ran.stdout == (RELEASE_1 / "records" / f"{topic}.jsonl").read_text()


@pytest.mark.parametrize("topic", WITHOUT_GAPS)
def test_every_byte_is_served_as_it_was(restarted: Restarted, client: RawClient, topic: str) -> None:
    for partition in range(2 if topic == "flights" else 1):
        assert served(client, topic, partition) == stored(restarted, topic, partition)


def served(client: RawClient, topic: str, partition: int) -> bytes:
    """The whole partition, fetched segment by segment."""
    found, offset = b"", client.offset_at(topic, EARLIEST, partition).offset
    while offset < client.offset_at(topic, LATEST, partition).offset:
        answer = client.fetch(topic, offset, partition)
        assert answer.error_code == ErrorCode.NONE
        found += bytes(answer.records)
        offset = decode(answer)[-1].next_offset
    return found


@pytest.mark.parametrize("partition", [0, 1])
def test_every_byte_of_07_is_served_as_it_was(restarted: Restarted, first: Wire07, partition: int) -> None:
    data = stored(restarted, "old", partition)
    assert offsets_in(first.ask(offsets("old", partition, LATEST, 1))) == [len(data)]
    assert offsets_in(first.ask(offsets("old", partition, EARLIEST, 1))) == [0]
    found = b""
    while len(found) < len(data):
        answer = first.ask(fetch("old", partition, len(found), 1 << 20))
        assert answer is not None
        assert answer[:2] == b"\0\0"
        found += answer[2:]
    assert found == data


def test_ids_and_properties_of_topics_are_kept(restarted: Restarted, client: RawClient) -> None:
    answer = client.ask(MetadataRequest())
    assert (restarted.written / "meta.properties").read_text().count(answer.cluster_id) == 1
    found = {t.name: len(t.partitions) for t in answer.topics}
    assert found == dict.fromkeys(TOPICS, 1) | {
        "flights": 2, "old": 2, "losses": 1, "__consumer_offsets": 2, "__transaction_state": 1,
    }  # fmt: skip
    for topic, name, value in (
        ("old", "generation", "0.7"),
        ("stored-as-v1", "message.format.version", "0.10.2"),
        ("append-time", "message.timestamp.type", "LogAppendTime"),
        ("losses", "retention.bytes", "500"),
        ("newest", "cleanup.policy", "compact"),
        ("flights", "delete.retention.ms", "98765432"),  # the broker's, changed while it ran
    ):
        resource = DescribeConfigsResource(ResourceType.TOPIC, topic, (name,))
        (result,) = client.ask(DescribeConfigsRequest(resources=(resource,))).results
        assert [(c.name, c.value) for c in result.configs] == [(name, value)]


def test_users_are_kept(client: RawClient) -> None:
    (alice,) = client.ask(DescribeUserScramCredentialsRequest(users=None)).results
    assert (alice.user, [(c.mechanism, c.iterations) for c in alice.credential_infos]) == (
        "alice",
        [(1, 4096)],
    )


def test_committed_offsets_are_kept(client: RawClient) -> None:
    """The client that committed them, confluent-kafka, ends metadata with a NUL."""
    groups = tuple(OffsetFetchRequestGroup(name, topics=None) for name in ("readers", "loaders"))
    readers, loaders = client.ask(OffsetFetchRequest(groups=groups)).groups
    assert {
        (t.name, p.partition_index): (p.committed_offset, p.metadata)
        for t in readers.topics
        for p in t.partitions
    } == {("flights", 0): (12, "at twelve\0"), ("flights", 1): (3, "\0")}
    assert {
        (t.name, p.partition_index): p.committed_offset for t in loaders.topics for p in t.partitions
    } == {("flights", 0): 20, ("flights", 1): 10}


def test_records_that_retention_took_stay_gone(client: RawClient) -> None:
    assert client.offset_at("losses", EARLIEST).offset == 41
    assert [r.value for r in client.read("losses", 41)] == [
        None if n % 10 == 9 else b"%d" % n for n in range(36, 60)
    ]


def test_a_producer_continues_where_it_was(client: RawClient) -> None:
    """Twenty records of one idempotent producer, two in a batch: it may repeat the last five batches."""
    producer = facts()["producer_id"]

    def send(sequence: int) -> tuple[ErrorCode, int]:
        data = batch(b"a", b"b", producer_id=producer, epoch=0, sequence=sequence)
        answer = client.produce("sequences", data)
        return answer.error_code, answer.base_offset

    assert client.ask(InitProducerIdRequest()).producer_id > producer
    assert [send(n) for n in (18, 10)] == [(ErrorCode.NONE, 18), (ErrorCode.NONE, 10)]
    assert [send(n)[0] for n in (8, 22)] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2
    assert send(20) == (ErrorCode.NONE, 20)
    assert [r.value for r in client.read("sequences", 19)] == [None, b"a", b"b"]


def test_an_open_transaction_ends_with_its_producers_next_start(client: RawClient) -> None:
    """Offsets 0 and 1 are committed, 3 and 4 aborted, 6 was open; 2 and 5 are markers."""
    aborted = client.fetch("transactions", 2, isolation_level=1).aborted_transactions or ()
    assert [one.first_offset for one in aborted][:1] == [3]
    until(lambda: client.ask(InitProducerIdRequest("open", 900_000)).error_code == ErrorCode.NONE)
    assert client.offset_at("transactions", LATEST, isolation_level=1).offset == 8
    firsts = [decode(client.fetch("transactions", offset))[0].value for offset in (0, 3, 6)]
    assert firsts == [b"0", b"2", b"4"]


def test_topics_are_appended_to(restarted: Restarted, client: RawClient, first: Wire07) -> None:
    assert client.produce("losses", batch(b"new")).base_offset == 65
    assert [r.value for r in client.read("losses", 65)] == [b"new"]
    data = stored(restarted, "old", 0)
    first.send(produce("old", 0, entry(b"new")))
    assert first.ask(fetch("old", 0, len(data), 100)) == b"\0\0" + entry(b"new")
