from __future__ import annotations

import threading
import time
from pathlib import Path
from urllib.request import urlopen
from uuid import UUID

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.disk.filesystem import OpenFiles
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.server.broker import Broker
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from pyspark_kafkalog.protocol.api.topics import DeleteTopicsRequest, DeleteTopicState
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import (
    RawClient,
    batch,
    decode,
    fetch_request,
    produce_request,
    versions,
)
from tests.support.until import until


@pytest.fixture
def filled(client: RawClient, topic: str) -> str:
    """Partition 0 with offsets 0-9 in five batches of two."""
    for i in range(5):
        client.produce(topic, batch(b"v%d" % (2 * i), b"v%d" % (2 * i + 1)))
    return topic


def _metrics(broker: EmbeddedBroker) -> str:
    with urlopen(f"{broker.status_url}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


BATCH_SIZE = len(batch(b"v0", b"v1"))
FOR_EVER_MS = 600_000
"""Longer than any test waits: whoever is not woken is not answered."""


class TestReading:
    @pytest.mark.parametrize("version", versions(ApiKey.FETCH))
    def test_every_version_gets_the_records_and_the_log_ends(
        self, client: RawClient, filled: str, version: int
    ) -> None:
        data = client.fetch(filled, 4, version=version)
        assert (data.error_code, data.high_watermark) == (ErrorCode.NONE, 10)
        assert data.last_stable_offset == (10 if version >= 4 else -1)
        assert data.log_start_offset == (0 if version >= 5 else -1)
        assert data.aborted_transactions is None
        assert [(r.offset, r.value) for r in decode(data)] == [(i, b"v%d" % i) for i in range(4, 10)]

    def test_an_id_that_no_topic_has_any_more_is_refused_and_the_others_are_served(
        self, client: RawClient, filled: str, topic_name: str
    ) -> None:
        client.create_topic(f"{topic_name}-again")
        client.produce(f"{topic_name}-again", batch(b"old"))
        gone, served = client.topic_id(f"{topic_name}-again"), client.topic_id(filled)
        client.ask(DeleteTopicsRequest(topics=(DeleteTopicState(topic_id=gone),)))
        client.create_topic(f"{topic_name}-again")
        wanted = tuple(
            FetchTopic(topic_id=each, partitions=(FetchPartition(partition=0, partition_max_bytes=1000),))
            for each in (gone, served, UUID(int=0))
        )
        answer = client.ask(FetchRequest(topics=wanted), 13).responses
        assert [(each.topic_id, each.partitions[0].error_code) for each in answer] == [
            (gone, ErrorCode.UNKNOWN_TOPIC_ID),
            (served, ErrorCode.NONE),
            (UUID(int=0), ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        assert len(decode(answer[1].partitions[0])) == 10

    def test_a_partition_named_again_is_answered_once(self, client: RawClient, filled: str) -> None:
        first, again = (
            FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000) for offset in (4, 0)
        )
        asked = tuple(FetchTopic(topic=filled, partitions=(each, again)) for each in (first, again))
        topics = client.ask(FetchRequest(topics=asked), 12).responses
        assert [len(each.partitions) for each in topics] == [1]
        assert [r.offset for r in decode(topics[0].partitions[0])] == list(range(4, 10))

    def test_a_fetch_by_id_waits_for_records(self, client: RawClient, filled: str) -> None:
        want = FetchPartition(partition=0, fetch_offset=10, partition_max_bytes=1000)
        topics = (FetchTopic(topic_id=client.topic_id(filled), partitions=(want,)),)
        client.send(FetchRequest(max_wait_ms=FOR_EVER_MS, min_bytes=1, topics=topics), 13)
        with RawClient(client.socket.getpeername()[1]) as writer:
            writer.produce(filled, batch(b"new"))
        assert [r.value for r in decode(client.receive().responses[0].partitions[0])] == [b"new"]

    def test_the_end_is_empty_and_beyond_it_is_out_of_range(self, client: RawClient, filled: str) -> None:
        end = client.fetch(filled, 10)
        assert (end.error_code, bytes(end.records or b"")) == (ErrorCode.NONE, b"")
        for offset in (11, -1):
            beyond = client.fetch(filled, offset)
            assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert (beyond.log_start_offset, beyond.high_watermark) == (0, 10)

    def test_one_bad_partition_does_not_fail_the_others(self, client: RawClient, filled: str) -> None:
        request = fetch_request({("never-made", 0): 0, (filled, 9): 0, (filled, 0): 8})
        results = [t.partitions[0] for t in client.ask(request).responses]
        assert [r.error_code for r in results] == [3, 3, 0]
        assert [r.offset for r in decode(results[2])] == [8, 9]

    @pytest.mark.parametrize(
        ("epoch", "code"),
        [
            (-1, ErrorCode.NONE),
            (0, ErrorCode.NONE),
            (1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (-2, ErrorCode.NONE),
        ],
    )
    def test_a_client_with_a_leader_epoch_to_come_gets_an_error(
        self, client: RawClient, filled: str, epoch: int, code: ErrorCode
    ) -> None:
        want = FetchPartition(
            partition=0, fetch_offset=0, partition_max_bytes=1000, current_leader_epoch=epoch
        )
        response = client.ask(FetchRequest(topics=(FetchTopic(topic=filled, partitions=(want,)),)))
        assert response.responses[0].partitions[0].error_code == code

    @pytest.mark.parametrize("version", [4, 9, 10])
    def test_zstd_is_sent_as_it_was_stored(self, client: RawClient, topic: str, version: int) -> None:
        """rskafka fetches with version 4 only, and writes zstd by default."""
        client.produce(topic, batch(b"plain"))
        client.produce(topic, batch(b"zstd", codec=Codec.ZSTD))
        found = client.fetch(topic, 0, version=version)
        assert [r.value for r in decode(found)] == [b"plain", b"zstd"]


class TestLimits:
    def test_only_the_first_partition_with_data_may_exceed_the_limits(
        self, client: RawClient, filled: str
    ) -> None:
        client.produce(filled, batch(b"v0", b"v1"), 1)
        request = fetch_request({(filled, 0): 10, (filled, 1): 0}, 1 << 20, max_bytes=1)
        sizes = [len(t.partitions[0].records or b"") for t in client.ask(request).responses]
        assert sizes == [0, BATCH_SIZE]
        request = fetch_request({(filled, 0): 0, (filled, 1): 0}, 1, max_bytes=1 << 20)
        sizes = [len(t.partitions[0].records or b"") for t in client.ask(request).responses]
        assert sizes == [BATCH_SIZE, 0]

    def test_the_requests_limit_is_for_all_partitions_together(self, client: RawClient, filled: str) -> None:
        for _ in range(5):
            client.produce(filled, batch(b"v0", b"v1"), 1)
        request = fetch_request({(filled, 0): 0, (filled, 1): 0}, max_bytes=7 * BATCH_SIZE)
        sizes = [len(t.partitions[0].records or b"") for t in client.ask(request).responses]
        assert sizes == [5 * BATCH_SIZE, 2 * BATCH_SIZE]

    def test_the_brokers_own_limit_goes_before_the_clients(self) -> None:
        with start_broker({"fetch.max.bytes": 2048}) as broker, RawClient(broker.port) as client:
            client.create_topic("t")
            for _ in range(4):
                client.produce("t", batch(b"x" * 900))
            assert [r.offset for r in decode(client.fetch("t", 0))] == [0, 1]


class TestManyPartitions:
    def test_a_partition_that_had_no_room_is_first_in_the_next_answer(
        self, client: RawClient, topic: str
    ) -> None:
        for partition in (0, 1):
            client.produce(topic, batch(b"v0", b"v1"), partition)
        request = fetch_request({(topic, 0): 0, (topic, 1): 0}, max_bytes=BATCH_SIZE)
        came = []
        for _ in range(4):
            got = [t.partitions[0] for t in client.ask(request).responses]
            came.append([bool(data.records) for data in got])
        assert came == [[True, False], [False, True]] * 2

    @pytest.mark.parametrize(
        ("value_bytes", "partitions", "expected"),
        [
            (9000, 8, [[0, 1, 2], [3, 4, 5], [0, 6, 7]]),
            (100, 8, [list(range(8))] * 3),
            # 1 MiB of them is copied, and three files are kept open.
            (8000, 200, [list(range(132)), [*range(64), *range(132, 200)], list(range(64, 196))]),
        ],
        ids=["in files", "copied", "both"],
    )
    def test_all_come_in_turn_where_few_files_may_be_open(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        value_bytes: int,
        partitions: int,
        expected: list[list[int]],
    ) -> None:
        """The client never moves on, so those at the front always have data: none may wait for ever."""
        monkeypatch.setattr(OpenFiles, "share", lambda _: 3)
        properties = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        broker = Broker(BrokerConfig.load(None, properties))
        broker.start()
        try:
            with RawClient(broker.port) as client:
                client.create_topic("t", partitions=partitions)
                client.ask(produce_request({("t", n): batch(bytes(value_bytes)) for n in range(partitions)}))
                request = fetch_request({("t", n): 0 for n in range(partitions)})
                came = []
                for _ in range(3):
                    got = [t.partitions[0] for t in client.ask(request).responses]
                    assert [(data.partition_index, data.error_code) for data in got] == [
                        (n, ErrorCode.NONE) for n in range(partitions)
                    ]
                    came.append([data.partition_index for data in got if data.records])
        finally:
            broker.stop()
        assert came == expected

    def test_what_had_no_room_is_checked_all_the_same(self, client: RawClient, topic: str) -> None:
        client.produce(topic, batch(b"v0", b"v1"), 0)
        request = fetch_request({(topic, 0): 0, (topic, 1): 7}, max_bytes=BATCH_SIZE)
        got = [t.partitions[0] for t in client.ask(request).responses]
        assert [data.error_code for data in got] == [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE]


class TestWaiting:
    def test_a_parked_fetch_is_woken_by_an_append(
        self, running_broker: EmbeddedBroker, client: RawClient, topic: str
    ) -> None:
        with RawClient(running_broker.port) as consumer:
            consumer.send(fetch_request({(topic, 0): 0, (topic, 1): 0}, max_wait_ms=FOR_EVER_MS))
            client.produce(topic, batch(b"wake up"), 1)
            response = consumer.receive()
            assert [r.value for r in decode(response.responses[1].partitions[0])] == [b"wake up"]

    def test_a_parked_fetch_times_out_in_time_with_what_there_is(self, client: RawClient, topic: str) -> None:
        client.produce(topic, batch(b"little"))
        began = time.monotonic()
        response = client.ask(fetch_request({(topic, 0): 0}, max_wait_ms=400, min_bytes=1 << 20))
        assert time.monotonic() - began >= 0.4
        assert [r.value for r in decode(response.responses[0].partitions[0])] == [b"little"]

    def test_an_error_is_answered_at_once(self, client: RawClient, topic: str) -> None:
        response = client.ask(fetch_request({(topic, 0): 0, ("never-made", 0): 0}, max_wait_ms=FOR_EVER_MS))
        assert [t.partitions[0].error_code for t in response.responses] == [0, 3]

    def test_a_deleted_topic_wakes_those_who_wait_for_it(
        self, running_broker: EmbeddedBroker, client: RawClient, topic: str
    ) -> None:
        with RawClient(running_broker.port) as consumer:
            consumer.send(fetch_request({(topic, 0): 0}, max_wait_ms=FOR_EVER_MS))
            client.ask(DeleteTopicsRequest(topics=(DeleteTopicState(name=topic),)))
            partition = consumer.receive().responses[0].partitions[0]
            assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    @pytest.mark.long("a broker that is started more than once")
    def test_stopping_answers_what_is_parked(self) -> None:
        with (
            start_broker({"metrics.listener": "127.0.0.1:0"}) as broker,
            RawClient(broker.port) as consumer,
        ):
            consumer.create_topic("t")
            consumer.send(fetch_request({("t", 0): 0}, max_wait_ms=FOR_EVER_MS))
            # The thread that counts a request then parks it, before it sees that the broker stops.
            until(lambda: 'requests_total{api="FETCH"} 1.0' in _metrics(broker))
            broker.stop()
            assert consumer.receive().responses[0].partitions[0].error_code == ErrorCode.NONE

    def test_no_append_is_missed_between_reading_and_parking(
        self, running_broker: EmbeddedBroker, client: RawClient, topic: str
    ) -> None:
        """Producer and consumer race for one record at a time; a lost wake-up would never be answered."""
        rounds = 300

        def produce() -> None:
            with RawClient(running_broker.port) as producer:
                for i in range(rounds):
                    producer.produce(topic, batch(b"%d" % i))

        thread = threading.Thread(target=produce)
        thread.start()
        offset = 0
        while offset < rounds:
            response = client.ask(fetch_request({(topic, 0): offset}, max_wait_ms=FOR_EVER_MS))
            found = decode(response.responses[0].partitions[0])
            assert found[0].offset <= offset
            offset = found[-1].next_offset
        thread.join()
