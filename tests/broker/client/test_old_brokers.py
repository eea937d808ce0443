"""Our clients at brokers of before 0.10, which do not tell what they speak: here ours, told to be one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog import NewTopic, Producer, create_topics
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.classic.mirror import Mirror
from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest, SyncProducer
from pyspark_kafkalog.cli.app import app
from pyspark_kafkalog.cli.arguments import LATEST, Time, resolve
from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import commit_offsets, committed_offsets, describe_group
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.mirror_config import mirror_config
from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    InvalidConfig,
    InvalidRecord,
    UnsupportedVersion,
)
from pyspark_kafkalog.formats.batch import magic_at
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_TIMESTAMP,
    NewRecord,
    TopicPartition,
)
from tests.support.client.old_broker import broker_of
from tests.support.command_line import kafkalog
from tests.support.manual_clock import ManualClock
from tests.support.until import until

VALUES = [(f"k{n}".encode() if n % 3 else None, f"v{n}".encode() * n) for n in range(40)]


@pytest.fixture(scope="module", params=["0.8.1", "0.9.0"])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def old_broker(release: str) -> Iterator[EmbeddedBroker]:
    with broker_of(release, {"log.retention.ms": -1, "num.partitions": 1}) as broker:
        yield broker


@pytest.fixture
def told(old_broker: EmbeddedBroker, release: str) -> dict[str, object]:
    """What clients must be told of such a broker."""
    return {"bootstrap.servers": old_broker.bootstrap_servers, "broker.version.fallback": release}


@pytest.fixture
def cluster(old_broker: EmbeddedBroker, release: str) -> Iterator[Cluster]:
    servers = old_broker.bootstrap_servers
    made = Cluster(ConsumerConfig(bootstrap_servers=servers, broker_version_fallback=release))
    yield made
    made.close()


@pytest.fixture
def written(told: dict[str, object], release: str, topic_name: str) -> TopicPartition:
    """A topic, made by being written to, with `VALUES` in every codec one after the other."""
    for codec in ("none", "gzip", "snappy", "snappy" if release == "0.8.1" else "lz4"):
        with Producer({**told, "compression.type": codec}) as out:
            sent = [out.send(topic_name, value, key, timestamp_ms=1000) for key, value in VALUES]
            assert sent[-1].result(90).timestamp == NO_TIMESTAMP
    return TopicPartition(topic_name, 0)


@pytest.mark.long("a broker that is started again")
def test_the_kinds_of_readers_read_what_a_producer_wrote(
    cluster: Cluster, told: dict[str, object], written: TopicPartition
) -> None:
    end = 4 * len(VALUES)
    config = cluster.config
    assert isinstance(config, ConsumerConfig)
    batches = [batch for _, batch in read_ranges(cluster, {written: (0, end)}, config)]
    assert [(r.key, r.value) for batch in batches for r in batch] == VALUES * 4
    assert {r.timestamp for batch in batches for r in batch} == {NO_TIMESTAMP}
    # Less than some entries take: the answer holds the beginning of one, and the next fetch asks for more.
    options = {f"kafka.{name}": str(value) for name, value in told.items()}
    options |= {"subscribe": written.topic, "kafka.max.partition.fetch.bytes": "100"}
    reader = BatchReader(parse_batch_options(options), ("key", "value", "offset"))
    rows = [row for part in reader.partitions() for found in reader.read(part) for row in found.to_pylist()]
    assert [(row["key"], row["value"]) for row in rows] == VALUES * 4
    assert [row["offset"] for row in rows] == list(range(end))


def test_what_lies_there_is_in_the_format_of_that_time(
    old_broker: EmbeddedBroker, release: str, written: TopicPartition
) -> None:
    properties = {"protocol": "0.8", "broker.version.fallback": release}
    with SimpleConsumer(old_broker.host, old_broker.port, properties) as consumer:
        found = consumer.fetch(written.topic, 0, 0, 1 << 20)
        assert {magic_at(found.data, frame.position) for frame in frames(found.data)} == {0}
        assert [r.value for r in found.records()] == [value for _, value in VALUES] * 4
        assert consumer.get_offsets_before(written.topic, 0, LATEST_TIMESTAMP, 10) == [4 * len(VALUES), 0]


def test_the_first_generations_producer_sends_sets_of_that_time(
    old_broker: EmbeddedBroker, release: str, topic_name: str
) -> None:
    properties = {"protocol": "0.8", "broker.version.fallback": release}
    with SyncProducer(old_broker.host, old_broker.port, properties) as producer:
        producer.send(topic_name, [NewRecord(b"v", b"k"), b"w"])
        with pytest.raises(InvalidRecord, match=r"before Kafka 0\.11 have no headers"):
            producer.multi_send([ProducerRequest(topic_name, [NewRecord(b"v", headers=(("h", b""),))])])
    with SimpleConsumer(old_broker.host, old_broker.port, properties) as consumer:
        found = consumer.fetch(topic_name, 0, 0)
        assert magic_at(found.data, 0) == 0
        assert [(r.key, r.value) for r in found.records()] == [(b"k", b"v"), (None, b"w")]


def test_a_time_is_good_for_where_to_begin_and_for_no_end(
    cluster: Cluster, told: dict[str, object], written: TopicPartition
) -> None:
    end = 4 * len(VALUES)
    later = int(time.time() * 1000) + 60_000
    assert list_offsets(cluster, {written: EARLIEST_TIMESTAMP})[written].offset == 0
    assert list_offsets(cluster, {written: LATEST_TIMESTAMP})[written].offset == end
    assert list_offsets(cluster, {written: 1}, by_segment=True)[written].offset == 0
    assert list_offsets(cluster, {written: later}, by_segment=True)[written].offset == end
    assert resolve(cluster, [written], Time(1)) == {written: 0}
    assert resolve(cluster, [written], LATEST) == {written: end}
    with pytest.raises(UnsupportedVersion, match=r"ListOffsets 0\): before Kafka 0\.10\.1 .* not for ending"):
        list_offsets(cluster, {written: 1})
    options = {f"kafka.{name}": str(value) for name, value in told.items()} | {"subscribe": written.topic}
    (part,) = BatchReader(parse_batch_options({**options, "startingTimestamp": "1"}), ("value",)).partitions()
    assert part.start == 0
    with pytest.raises(UnsupportedVersion, match="not for ending"):
        BatchReader(parse_batch_options({**options, "endingTimestamp": "1"}), ("value",)).partitions()


def test_groups_keep_their_offsets(cluster: Cluster, written: TopicPartition, release: str) -> None:
    group, missing = f"group-of-{written.topic}", TopicPartition(written.topic, 5)
    assert committed_offsets(cluster, group, [written]) == {}
    commit_offsets(cluster, group, {written: 7}, metadata="m")
    assert committed_offsets(cluster, group, [written, missing])[written].offset == 7
    assert {tp: c.offset for tp, c in committed_offsets(cluster, group).items()} == {written: 7}
    if release == "0.9.0":
        assert describe_group(cluster, group).state == "Empty"
    else:
        with pytest.raises(UnsupportedVersion, match="does not serve"):
            describe_group(cluster, group)


def test_looking_for_a_topic_does_not_make_it(cluster: Cluster, written: TopicPartition) -> None:
    found = cluster.metadata([written.topic, "not-there"], refresh=True)
    assert found.topics["not-there"].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found.topics[written.topic].partitions[0].leader == found.brokers.keys().__iter__().__next__()
    every = cluster.metadata(None).topics
    assert written.topic in every
    assert "not-there" not in every
    assert all(topic.is_internal == name.startswith("__") for name, topic in every.items())


def test_an_unknown_release_names_the_property_to_set(old_broker: EmbeddedBroker) -> None:
    servers = old_broker.bootstrap_servers
    cluster = Cluster(ConsumerConfig(bootstrap_servers=servers), clock=ManualClock())
    with pytest.raises(ConnectionLost, match=r"Set broker\.version\.fallback to its release: 0\.8\.0"):
        cluster.metadata(None)
    cluster.close()


def test_what_the_release_does_not_have_is_refused_with_a_way_out(
    cluster: Cluster, told: dict[str, object], topic_name: str
) -> None:
    with pytest.raises(
        UnsupportedVersion,
        match=r"before Kafka 0\.10\.1 cannot create topics for clients: use kafka-topics\.sh",
    ):
        create_topics(cluster, [NewTopic(topic_name, 1, 1)])
    with Producer(told) as out, pytest.raises(InvalidRecord, match=r"message\.format=v0 has no headers"):
        out.send(topic_name, b"v", headers=[("h", b"")])
    with Producer({**told, "message.format": "v2", "enable.idempotence": False}) as out:
        sent = out.send(topic_name, b"v")
        with pytest.raises(UnsupportedVersion, match=r"message\.format=v1 is for 0\.10, v0 for 0\.8"):
            sent.result(90)


def test_the_command_line_is_set_by_a_variable(topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKALOG_BROKER_VERSION", "0.9.0.1")
    with broker_of("0.9.0", {"log.retention.ms": -1}) as broker:
        servers = broker.bootstrap_servers
        run = CliRunner(env={"KAFKALOG_BOOTSTRAP_SERVER": servers, "COLUMNS": "120"})
        sent = run.invoke(app, ["produce", topic_name, "--quiet"], input="one\ntwo\nthree\n")
        assert sent.exit_code == 0, sent.output
        assert f"{topic_name}\t1\n" in run.invoke(app, ["topics", "list"]).output
        shown = run.invoke(app, ["topics", "describe", topic_name]).output
        assert f"{topic_name}  no id  properties unknown: this broker is too old to report them" in shown
        refused = run.invoke(app, ["topics", "delete", topic_name, "--yes"]).exception
        assert isinstance(refused, UnsupportedVersion)
        read = kafkalog("consume", topic_name, "--from", "-2", "--quiet", server=servers)
        assert (read.stdout, read.stderr) == ("two\nthree\n", "")
        monkeypatch.setenv("KAFKALOG_BROKER_VERSION", "0.7")
        wrong = run.invoke(app, ["topics", "list"]).exception
    assert isinstance(wrong, InvalidConfig)
    assert str(wrong).startswith("KAFKALOG_BROKER_VERSION: broker.version.fallback=0.7 is not allowed")


@pytest.mark.long("a broker that is started again")
def test_a_mirror_reads_from_and_writes_to_such_brokers(zookeeper_connect: str, topic_name: str) -> None:
    old, new = f"{zookeeper_connect}-old", f"{zookeeper_connect}-new"
    told = {"broker.version.fallback": "0.8.2", "api.version.request": "false"}
    session = {"zookeeper.session.timeout.ms": 90_000}
    prompt = {
        "groupid": "g", "protocol": "0.8", "fetcher.backoff.ms": 20, "rebalance.backoff.ms": 100, **session,
    }  # fmt: skip
    with (
        broker_of("0.8.2", {"log.retention.ms": -1, "zookeeper.connect": old, **session}) as one,
        start_broker({"log.retention.ms": -1, "zookeeper.connect": new, **session}) as other,
    ):
        with Producer({"bootstrap.servers": one.bootstrap_servers, **told}) as out:
            for number in range(10):
                out.send(topic_name, b"%d" % number, b"k")
        there: dict[str, object] = {f"source.a.{k}": v for k, v in {**prompt, **told}.items()}
        there |= {"source.a.zookeeper.connect": old, "target.bootstrap.servers": other.bootstrap_servers}
        mirrored(there, topic_name, 10)
        back: dict[str, object] = {f"source.a.{k}": v for k, v in prompt.items()}
        back |= {f"target.{k}": v for k, v in told.items()} | {"source.a.groupid": "back"}
        back |= {"source.a.zookeeper.connect": new, "target.bootstrap.servers": one.bootstrap_servers}
        mirrored(back, topic_name, 10)
        with SimpleConsumer(one.host, one.port, {"protocol": "0.8", **told}) as consumer:
            found = consumer.fetch(topic_name, 0, 0).records()
            assert [(r.key, r.value) for r in found] == [(b"k", b"%d" % n) for n in range(10)] * 2


def mirrored(properties: dict[str, object], topic: str, count: int) -> None:
    """Mirror a topic until so many of its messages have been read and are at the target."""
    config = mirror_config({"sources": "a", "whitelist": topic, **properties}, source="test")
    with Mirror(config).start() as mirror:
        until(lambda: mirror.progress()[0].message_count == count)
