"""Our producer's transactions at a real Apache Kafka: what librdkafka, Kafka's own consumer and we read."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_kafkalog import NewTopic, Producer, create_topics
from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import CommittedOffset, committed_offsets
from pyspark_kafkalog.client.offsets import list_offsets
from pyspark_kafkalog.client.transactions import PreparedTransaction, end_transaction
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.errors import InvalidTxnState, ProducerFenced, TransactionAbortable
from pyspark_kafkalog.types import LATEST_TIMESTAMP, TopicPartition
from tests.support.foreign.apache_kafka import run_tool
from tests.support.foreign.fetched import ROOT

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
WAIT_SECONDS = 30.0


def producer(servers: str, transactional_id: str, **changes: object) -> Producer:
    """One that has taken over its id."""
    config = {"bootstrap.servers": servers, "transactional.id": transactional_id, "linger.ms": 2}
    made = Producer(config | {name.replace("_", "."): value for name, value in changes.items()})
    made.init_transactions()
    return made


def ours(servers: str, topic: str, partition: int = 0, isolation: str = READ_COMMITTED) -> list[bytes | None]:
    """What the fetcher and decoder of Spark's tasks read up to the end that the isolation has."""
    config = ConsumerConfig(bootstrap_servers=servers, isolation_level=isolation)
    tp = TopicPartition(topic, partition)
    with closing(Cluster(config)) as cluster:
        end = list_offsets(cluster, {tp: LATEST_TIMESTAMP}, isolation=config.isolation)[tp].offset
        return [r.value for _, batch in read_ranges(cluster, {tp: (0, end)}, config) for r in batch]


def theirs(servers: str, topic: str, partition: int = 0, isolation: str = READ_COMMITTED) -> list[bytes]:
    """What librdkafka reads until it says that the partition ends."""
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka import TopicPartition as Theirs

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "nobody",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([Theirs(topic, partition, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is None:
                found.append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
        raise AssertionError(f"no end of {topic} in {WAIT_SECONDS} s; read {len(found)}")
    finally:
        consumer.close()


def settled(servers: str, topic: str, expected: list[bytes], partition: int = 0) -> None:
    """Wait for the markers, which Kafka writes after it has answered; then both readers must agree."""
    deadline = time.monotonic() + WAIT_SECONDS
    while ours(servers, topic, partition) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ours(servers, topic, partition) == expected
    assert theirs(servers, topic, partition) == expected


def test_committed_is_seen_and_aborted_is_not_by_every_reader(
    servers: str, topic: str, kafka_jars: Path
) -> None:
    kept = []
    with producer(servers, topic, compression_type="lz4") as out:
        for number in range(5):
            out.begin_transaction()
            values = [b"%d of %d" % (i, number) for i in range(20)]
            for value in values:
                out.send(topic, value, partition=0)
            if number % 2:
                out.flush()
                out.abort_transaction()
            else:
                out.commit_transaction()
                kept += values
    settled(servers, topic, kept)
    assert len(ours(servers, topic, isolation=READ_UNCOMMITTED)) == 100
    assert len(theirs(servers, topic, isolation=READ_UNCOMMITTED)) == 100
    for isolation, count in ((READ_COMMITTED, 60), (READ_UNCOMMITTED, 100)):
        said = run_tool(
            kafka_jars, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", servers,
            "--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", str(count),
            "--isolation-level", isolation, "--timeout-ms", "20000",
        )  # fmt: skip
        lines = [line.encode() for line in said.splitlines() if re.fullmatch(r"\d+ of \d", line)]
        assert len(lines) == count
        assert isolation == READ_UNCOMMITTED or lines == kept


def test_a_zombie_is_fenced_by_the_next_producer_of_its_id(servers: str, topic: str) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka import Producer as Foreign

    zombie = producer(servers, topic)
    zombie.begin_transaction()
    zombie.send(topic, b"of the zombie", partition=0).result(WAIT_SECONDS)
    foreign = Foreign({"bootstrap.servers": servers, "transactional.id": topic})
    foreign.init_transactions(WAIT_SECONDS)
    late = zombie.send(topic, b"too late", partition=1)
    with pytest.raises((TransactionAbortable, ProducerFenced)):
        zombie.commit_transaction()
    assert late.done
    with pytest.raises(ProducerFenced):
        zombie.abort_transaction()
    with pytest.raises(ProducerFenced, match="must be closed"):
        zombie.begin_transaction()
    zombie.close()
    foreign.begin_transaction()
    foreign.produce(topic, b"of librdkafka", partition=0)
    foreign.flush(WAIT_SECONDS)
    with producer(servers, topic) as third:
        with pytest.raises(KafkaException):
            foreign.commit_transaction(WAIT_SECONDS)
        third.begin_transaction()
        third.send(topic, b"of the third", partition=0)
        third.commit_transaction()
    settled(servers, topic, [b"of the third"])
    settled(servers, topic, [], partition=1)


def test_offsets_change_with_the_transaction(servers: str, topic: str, cluster: Cluster) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Theirs

    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with producer(servers, topic) as out:
        for number in range(4):
            out.begin_transaction()
            out.send(topic, b"%d" % number, partition=0)
            offsets = {tp: CommittedOffset(number, -1, f"batch {number}"), other: 10 + number}
            out.send_offsets_to_transaction(offsets, topic)
            out.send_offsets_to_transaction({other: 20 + number}, topic)
            (out.abort_transaction if number % 2 else out.commit_transaction)()
            last = number - number % 2
            found = committed_offsets(cluster, topic, [tp, other], stable=True)
            assert found[tp] == CommittedOffset(last, -1, f"batch {last}")
            assert found[other].offset == 20 + last
    foreign = Consumer({"bootstrap.servers": servers, "group.id": topic})
    (seen,) = foreign.committed([Theirs(topic, 0)], WAIT_SECONDS)
    foreign.close()
    assert (seen.offset, seen.metadata) == (2, "batch 2")


CHILD = """
import json, signal, sys
from pyspark_kafkalog import Producer
from pyspark_kafkalog.types import TopicPartition
servers, topic, prepare = sys.argv[1:]
out = Producer({"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 2})
out.init_transactions()
out.begin_transaction()
for i in range(100):
    out.send(topic, b"%d" % i, partition=0)
out.send_offsets_to_transaction({TopicPartition(topic, 0): 7}, topic)
out.flush()
print(json.dumps(out.prepare_transaction() if prepare == "yes" else None), flush=True)
signal.pause()
"""


def killed_between_flush_and_commit(servers: str, topic: str, prepare: bool = True) -> PreparedTransaction:
    """What a process that was killed had prepared."""
    arguments = [sys.executable, "-c", CHILD, servers, topic, "yes" if prepare else "no"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=ROOT, text=True) as child:
        assert child.stdout is not None
        said = json.loads(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    return PreparedTransaction(*said) if prepare else PreparedTransaction(topic, -1, -1, False)


WHOLE = [b"%d" % i for i in range(100)]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_what_a_killed_process_had_prepared_is_ended_by_another(
    servers: str, topic: str, cluster: Cluster, commit: bool
) -> None:
    prepared = killed_between_flush_and_commit(servers, topic)
    assert ours(servers, topic) == theirs(servers, topic) == []
    for _ in range(2):
        end_transaction(cluster, prepared, commit=commit)
    with pytest.raises(InvalidTxnState, match="the other way"):
        end_transaction(cluster, prepared, commit=not commit)
    settled(servers, topic, WHOLE if commit else [])
    tp = TopicPartition(topic, 0)
    found = committed_offsets(cluster, topic, [tp], stable=True)
    assert found == ({tp: CommittedOffset(7, -1, "")} if commit else {})
    with producer(servers, topic), pytest.raises(ProducerFenced, match="newer producer"):
        end_transaction(cluster, prepared, commit=commit)
    settled(servers, topic, WHOLE if commit else [])


@pytest.mark.parametrize("prepare", [True, False], ids=["prepared", "flushed"])
def test_what_a_killed_process_left_open_the_next_producer_aborts(
    servers: str, topic: str, cluster: Cluster, prepare: bool
) -> None:
    prepared = killed_between_flush_and_commit(servers, topic, prepare)
    with producer(servers, topic) as out:
        settled(servers, topic, [])
        out.begin_transaction()
        out.send(topic, b"again", partition=0)
        out.commit_transaction()
    if prepare:
        with pytest.raises(ProducerFenced, match="newer producer"):
            end_transaction(cluster, prepared, commit=True)
    settled(servers, topic, [b"again"])
    assert committed_offsets(cluster, topic, [TopicPartition(topic, 0)], stable=True) == {}


def test_a_transaction_that_takes_too_long_is_aborted_by_the_coordinator(
    servers: str, topic: str, cluster: Cluster
) -> None:
    out = producer(servers, topic, transaction_timeout_ms=100)
    out.begin_transaction()
    out.send(topic, b"slow", partition=0)
    prepared = out.prepare_transaction()
    out.close()
    settled_by = time.monotonic() + WAIT_SECONDS
    tp = TopicPartition(topic, 0)
    isolation = ConsumerConfig(bootstrap_servers=servers, isolation_level=READ_COMMITTED).isolation
    while list_offsets(cluster, {tp: LATEST_TIMESTAMP}, isolation=isolation)[tp].offset < 2:
        assert time.monotonic() < settled_by, "Kafka looks every ten seconds"
        time.sleep(0.2)
    with pytest.raises(ProducerFenced, match=r"transaction\.timeout\.ms"):
        end_transaction(cluster, prepared, commit=True)
    settled(servers, topic, [])


TRANSACTIONS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 400)), max_size=30),
        st.sampled_from(["commit", "abort", "prepare and commit", "prepare and abort", "begin anew"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(transactions=TRANSACTIONS, codec=st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]))
def test_random_transactions_are_read_the_same_by_us_and_by_librdkafka(
    servers: str, cluster: Cluster, transactions: Any, codec: str
) -> None:
    topic = f"random-{time.time_ns()}"
    create_topics(servers, [NewTopic(topic, 2)])
    kept: list[list[bytes]] = [[], []]
    everything: list[list[bytes]] = [[], []]
    small = {"compression_type": codec, "batch_size": 500, "linger_ms": 0}
    out = producer(servers, topic, **small)
    zombies = []
    for number, (records, ending, flush) in enumerate(transactions):
        out.begin_transaction()
        written: list[list[bytes]] = [[], []]
        for i, (partition, size) in enumerate(records):
            value = b"%d of %d " % (i, number) + b"x" * size
            out.send(topic, value, partition=partition)
            written[partition].append(value)
        if flush or ending != "abort":
            out.flush()
            for partition in range(2):
                everything[partition] += written[partition]
        if ending == "begin anew":
            zombies.append(out)
            out = producer(servers, topic, **small)
        elif ending.startswith("prepare"):
            end_transaction(cluster, out.prepare_transaction(), commit=ending.endswith("commit"))
            out.close()
            out = producer(servers, topic, **small)
        elif ending == "commit":
            out.commit_transaction()
        else:
            out.abort_transaction()
        if ending.endswith("commit"):
            for partition in range(2):
                kept[partition] += written[partition]
    for each in (*zombies, out):
        each.close()
    for partition in range(2):
        settled(servers, topic, kept[partition], partition)
        uncommitted = ours(servers, topic, partition, READ_UNCOMMITTED)
        assert uncommitted == theirs(servers, topic, partition, READ_UNCOMMITTED)
        assert set(everything[partition]) <= set(uncommitted)


MANUAL = (ROOT / "docs" / "clients.md").read_text("utf-8")


def test_the_manuals_examples_do_what_they_say(servers: str, cluster: Cluster, topic: str) -> None:
    create_topics(servers, [NewTopic(f"{topic}-clicks", 1)])
    examples = [e for e in re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL) if "transactional.id" in e]
    assert len(examples) == 2
    for example in examples:
        code = example.replace("localhost:9092", servers).replace('"views"', repr(topic))
        exec(compile(code.replace('"clicks"', repr(f"{topic}-clicks")), "docs/clients.md", "exec"), {})
    settled(servers, topic, [b"one view", b"another view"])
    tp = TopicPartition(f"{topic}-clicks", 0)
    assert committed_offsets(cluster, "clicks-to-views", [tp], stable=True)[tp].offset == 5
