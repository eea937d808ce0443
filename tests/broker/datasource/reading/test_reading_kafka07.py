"""Topics of Kafka 0.7 as rows: what is planned and read, also where a broker misbehaves."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.datasource.reading.kafka import open_cluster
from pyspark_kafkalog.datasource.reading.source_cluster import DataLoss
from pyspark_kafkalog.errors import (
    ConnectionLost,
    CorruptMessage,
    ErrorCode,
    InvalidConfig,
    MessageTooLarge,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.v07 import encode_message, encode_set
from pyspark_kafkalog.protocol.v07 import FetchRequest
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, TopicPartition
from pyspark_kafkalog.zookeeper.session import ZooKeeperSession
from tests.support.client.broker07 import Broker07
from tests.support.datasource.source07 import QUICK, Row, reader07, rows, tasks
from tests.support.protocol.raw_client import RawClient
from tests.support.protocol.wire07 import Wire07, entry, fetch, produce, zipped
from tests.support.until import until

SETTINGS: dict[str, object] = {
    "listeners": "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0", "num.partitions": 3, "node.id": 7,
    "log.flush.interval": 1, "log.file.size": 2000, "log.retention.check.interval.ms": 50,
}  # fmt: skip


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with start_broker(SETTINGS) as broker:
        yield broker


@pytest.fixture
def at(kafka: EmbeddedBroker, topic_name: str) -> dict[str, str]:
    """The options that read this test's topic."""
    return {"broker.list": f"7:127.0.0.1:{kafka.port_of('KAFKA07')}", "subscribe": topic_name}


def put(kafka: EmbeddedBroker, topic: str, *sets: bytes, partition: int = 0) -> None:
    """Produce sets, one after the other, and return when they are in the log."""
    with Wire07(kafka.port_of("KAFKA07")) as wire:
        for data in sets:
            wire.send(produce(topic, partition, data))
            assert wire.ask(fetch(topic, partition, 0, 0)) is not None


def places(found: list[Row]) -> list[tuple[bytes | None, int, int]]:
    return [(row.value, row.offset, row.inner_index) for row in found]


def json_of(topic: str, **offsets: int) -> str:
    """``json_of("t", p0=5)``: of broker 7."""
    inner = ",".join(f'"7-{name[1:]}":{offset}' for name, offset in offsets.items())
    return f'{{"{topic}":{{{inner}}}}}'


# --- what is read


def test_every_message_comes_with_its_broker_position_and_place(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str
) -> None:
    plain, packed = entry(b"one"), zipped(entry(b"g1"), entry(b"g2", magic=0), entry(b"g3"))
    snappy = encode_message(compress(Codec.SNAPPY, encode_set([b"s1", b"s2"])), codec=Codec.SNAPPY)
    nested = zipped(entry(b"n1"), zipped(entry(b"n2"), entry(b"n3")), entry(b"n4"))
    put(kafka, topic_name, plain + packed + snappy, nested + entry(b"", magic=0))
    put(kafka, topic_name, entry(b"elsewhere"), partition=2)
    first, second = len(plain), len(plain + packed)
    third = second + len(snappy)
    last = third + len(nested)
    found = rows(reader07(**at))
    assert places([row for row in found if row.partition == 0]) == [
        (b"one", 0, 0),
        *((b"g%d" % n, first, n - 1) for n in (1, 2, 3)),
        *((b"s%d" % n, second, n - 1) for n in (1, 2)),
        *((b"n%d" % n, third, n - 1) for n in (1, 2, 3, 4)),
        (b"", last, 0),
    ]
    assert found[-1] == Row(b"elsewhere", topic_name, 2, 0, 7, 0)
    assert {row.broker for row in found} == {7}


def test_columns_that_0_7_has_nothing_for_are_null(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str
) -> None:
    put(kafka, topic_name, entry(b"x"))
    names = ("key", "timestamp", "timestampType", "headers")
    reader = reader07(names, **{**at, "includeHeaders": "true"})
    assert [batch.to_pylist() for batch in reader.read(tasks(reader)[0])] == [[dict.fromkeys(names)]]


def test_a_range_reads_the_entries_that_begin_in_it(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str
) -> None:
    packed = zipped(*(entry(b"%d" % n * 30) for n in range(5)))
    put(kafka, topic_name, entry(b"a") + packed + entry(b"z"))
    begin, after = 11, 11 + len(packed)

    def between(start: int, end: int) -> list[Any]:
        found = reader07(
            **at,
            startingOffsets=json_of(topic_name, p0=start, p1=-2, p2=-2),
            endingOffsets=json_of(topic_name, p0=end, p1=-1, p2=-1),
        )
        return [(row.offset, row.inner_index) for row in rows(found)]

    inner = [(begin, n) for n in range(5)]
    assert between(0, begin) == [(0, 0)]
    assert between(0, begin + 1) == [(0, 0), *inner]
    assert between(begin, after - 1) == inner
    assert between(begin, after + 1) == [*inner, (after, 0)]
    assert between(after, -1) == [(after, 0)]
    assert between(after, after) == []
    with pytest.raises(InvalidConfig, match=f"start offset {after} is greater .* partition 7-0"):
        between(after, begin)


def test_a_message_larger_than_a_fetch_is_read_up_to_max_message_size(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str
) -> None:
    put(kafka, topic_name, entry(b"small"), entry(b"x" * 90_000), entry(b"after"))
    small = {**at, "kafka.fetch.size": "100"}
    assert [len(row.value or b"") for row in rows(reader07(**small))] == [5, 90_000, 5]
    with pytest.raises(MessageTooLarge, match=r"an entry of 90010 bytes.*max.message.size is 80000"):
        rows(reader07(**small, **{"kafka.max.message.size": "80000"}))


def test_a_set_that_holds_too_much_is_an_error(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str
) -> None:
    put(kafka, topic_name, zipped(entry(b"x" * 50_000)))
    with pytest.raises(MessageTooLarge, match=rf"{topic_name}-7-0, entry at offset 0"):
        rows(reader07(**at, **{"kafka.max.decompressed.bytes": "40000"}))


def test_a_start_within_an_entry_is_reported(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str
) -> None:
    looks_good = entry(b"an entry in an entry", crc=1)
    put(kafka, topic_name, entry(b"aaaaaaaaaa"), entry(bytes(10) + looks_good), entry(b"end"))
    for inside in (3, 12, 22, 35, 40, 69, 82):
        start = json_of(topic_name, p0=inside, p1=-2, p2=-2)
        with pytest.raises(CorruptMessage) as raised:
            rows(reader07(**at, startingOffsets=start))
        assert f"{topic_name}-7-0: no message begins at offset {inside}" in str(raised.value)
        assert "Offsets of Kafka 0.7 are byte positions" in str(raised.value)
    with pytest.raises(DataLoss, match=r"\[84, 90\) of .*: the log holds \[0, 83\)"):
        rows(
            reader07(
                **at,
                startingOffsets=json_of(topic_name, p0=84, p1=-2, p2=-2),
                endingOffsets=json_of(topic_name, p0=90, p1=-1, p2=-1),
            )
        )
    good = json_of(topic_name, p0=20, p1=-2, p2=-2)
    assert [row.offset for row in rows(reader07(**at, startingOffsets=good))] == [20, 70]


def test_what_has_aged_out_is_lost(kafka: EmbeddedBroker, at: dict[str, str], topic_name: str) -> None:
    with RawClient(kafka.port) as client:
        made = client.create_topic(topic_name, 1, {"generation": "0.7", "retention.bytes": "2500"})
        assert made.error_code == ErrorCode.NONE
    sets = [b"".join(entry(b"%d" % n * 490) for n in range(5))] * 4
    put(kafka, topic_name, *sets)
    with SimpleConsumer("127.0.0.1", kafka.port_of("KAFKA07")) as consumer:
        until(lambda: consumer.get_offsets_before(topic_name, 0, -2, 1) == [7500])
    start = json_of(topic_name, p0=2500)
    with pytest.raises(
        DataLoss, match=rf"\[2500, 10000\) of {topic_name}-7-0: the log holds \[7500, 10000\)"
    ):
        rows(reader07(**at, startingOffsets=start))
    lenient = reader07(**at, startingOffsets=start, failOnDataLoss="false")
    assert [row.offset for row in rows(lenient)] == list(range(7500, 10000, 500))
    assert [row.offset for row in rows(reader07(**at))] == list(range(7500, 10000, 500))


# --- what is planned


def test_without_zookeeper_each_broker_is_asked_for_its_partitions(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str
) -> None:
    other = Broker07(partitions=70)
    with other:
        both = f"{at['broker.list']},12:127.0.0.1:{other.port}"
        planned = tasks(reader07(**{**at, "broker.list": both}))
        # Of what it does not have it is asked once: 0.7 writes an error with its stack for each.
        assert [request.partition for request in other.received(FetchRequest)] == list(range(71))
        assigned = tasks(
            reader07(**{"broker.list": both, "assign": f'{{"{topic_name}":["12-69","7-0","12-3"]}}'})
        )
        with pytest.raises(UnknownTopicOrPartition, match=r"not there: \S+-9-0, \S+-7-3, \S+-12-70"):
            reader07(
                **{"broker.list": both, "assign": f'{{"{topic_name}":["12-70","7-0","7-3","9-0"]}}'}
            ).partitions()
    assert [(t.broker, t.partition) for t in planned] == [
        *((b, n) for n in range(3) for b in (7, 12)),
        *((12, n) for n in range(3, 70)),
    ]
    assert {t.address for t in planned if t.broker == 12} == {f"127.0.0.1:{other.port}"}
    assert [str(t.topic_partition) for t in assigned] == [
        f"{topic_name}-{p}" for p in ("7-0", "12-3", "12-69")
    ]


def test_tasks_are_cut_where_segments_begin(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str
) -> None:
    for n in range(6):
        put(kafka, topic_name, *(entry(b"%d" % n * 990) for _ in range(3)))
    planned = tasks(reader07(**at, minPartitions="4"))
    assert [t.partition for t in (planned[-1], *planned[-1].more)] == [1, 2]  # empty now
    assert [(t.partition, t.start, t.end) for t in planned[:-1]] == [
        (0, EARLIEST_OFFSET, 6000),
        (0, 6000, 9000),
        (0, 9000, 15000),
        (0, 15000, LATEST_OFFSET),
    ]
    assert [row.offset for row in rows(reader07(**at), planned)] == list(range(0, 18000, 1000))
    put(kafka, topic_name, entry(b"new"), partition=2)
    assert [row.offset for row in rows(reader07(**at), planned)] == [*range(0, 18000, 1000), 0]
    assert len(tasks(reader07(**at, minPartitions="100"))) == 6 + 1 + 1


def test_a_time_begins_with_the_last_segment_written_before_it(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str
) -> None:
    put(kafka, topic_name, *(entry(b"x" * 990) for _ in range(6)))
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    put(kafka, topic_name, *(entry(b"y" * 990) for _ in range(2)))
    since = [row.offset for row in rows(reader07(**at, startingTimestamp=str(between)))]
    assert since == list(range(3000, 8000, 1000))
    by_partition = json_of(topic_name, p0=between, p1=1, p2=1)
    assert [row.offset for row in rows(reader07(**at, startingOffsetsByTimestamp=by_partition))] == since
    assert [row.offset for row in rows(reader07(**at, startingTimestamp="1"))] == list(range(0, 8000, 1000))
    now = str(int(time.time() * 1000) + 60_000)
    assert rows(reader07(**at, startingTimestamp=now)) == []


def test_positions_of_a_plan_are_looked_at(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str
) -> None:
    put(kafka, topic_name, entry(b"a" * 90), entry(b"b" * 90))
    lookup = open_cluster(parse_batch_options({"protocol": "0.7", **QUICK, **at}))
    where = TopicPartition(topic_name, 0, 7)
    for good in (0, 100, 200, 300):
        lookup.check_positions({where: good})
    for wrong in (50, 101, 199):
        with pytest.raises(InvalidConfig, match=f"no message begins at offset {wrong}"):
            lookup.check_positions({where: wrong})
    facts = lookup.facts([where])[where]
    assert (facts.topic_id, facts.leader, facts.earliest, facts.latest) == ("", 7, 0, 200)
    assert facts.address == at["broker.list"][2:]
    with pytest.raises(UnknownTopicOrPartition, match=rf"{topic_name}-7-8"):
        lookup.facts([TopicPartition(topic_name, 8, 7)])
    lookup.close()


@pytest.mark.long("every kind of damage in every format")
def test_zookeeper_is_asked_by_the_planner_alone(zookeeper_connect: str, topic_name: str) -> None:
    settings = {**SETTINGS, "zookeeper.connect": zookeeper_connect}
    with start_broker(settings) as broker:
        put(broker, topic_name, entry(b"x"), partition=1)
        put(broker, "other", entry(b"y"))
        place = {"zk.connect": zookeeper_connect}
        reader = reader07(**place, subscribe=topic_name)
        planned = until(lambda: _planned(reader))
        pattern = reader07(**place, subscribePattern=f"{topic_name[:3]}.*|nothing")
        assert {t.topic for t in tasks(pattern)} == {topic_name}
        with pytest.raises(
            UnknownTopicOrPartition, match=r"topic 'gone' is on no live broker of zookeeper.connect"
        ):
            reader07(**place, subscribe=f"gone,{topic_name}").partitions()
        elsewhere = reader07(**{"zk.connect": "127.0.0.1:1/nowhere"}, subscribe=topic_name)
        assert rows(elsewhere, planned) == [Row(b"x", topic_name, 1, 0, 7, 0)]
    gone = reader07(**place, subscribe=topic_name, **{"kafkaConsumer.pollTimeoutMs": "100"})
    with pytest.raises(ConnectionLost, match=r"broker 7 was at 127.0.0.1:\d+ when this read was planned"):
        rows(gone, planned)


def test_a_broker_that_has_gone_with_its_partitions_left_behind_is_named(
    session: ZooKeeperSession, zookeeper_connect: str
) -> None:
    session.create("/kept/brokers/topics/t/9", b"2")
    place = {"zookeeper.connect": zookeeper_connect, "kafka.zookeeper.prefix.07": "/kept"}
    with pytest.raises(ConnectionLost, match=r"broker 9 is not among those of zookeeper\.connect=.*running"):
        reader07(**place, subscribe="t", **{"fetchOffset.numRetries": "1"}).partitions()
    lookup = open_cluster(parse_batch_options({"protocol": "0.7", **QUICK, **place, "subscribe": "t"}))
    assert lookup.leaders() == {TopicPartition("t", 0, 9): 9, TopicPartition("t", 1, 9): 9}
    assert lookup.broker_addresses() == {}
    lookup.close()


def _planned(reader: Any) -> list[Any]:
    """The tasks, once the topic is registered."""
    try:
        return tasks(reader)
    except UnknownTopicOrPartition:
        return []


def test_with_a_list_of_brokers_nothing_needs_kazoo(
    kafka: EmbeddedBroker, at: dict[str, str], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(kafka, topic_name, entry(b"x"))
    for name in [n for n in sys.modules if n.split(".")[0] == "kazoo" or n.endswith("zookeeper.session")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    assert [row.value for row in rows(reader07(**at))] == [b"x"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribePattern": "t.*"}, "subscribePattern needs zookeeper.connect"),
        (
            {"subscribe": "t", "startingOffsets": "group", "kafka.group.id": "g"},
            "the offsets of group 'g' need zookeeper.connect",
        ),
    ],
)
def test_what_only_zookeeper_knows_is_refused_without_it(
    at: dict[str, str], options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said):
        reader07(**{"broker.list": at["broker.list"], **options}).partitions()
