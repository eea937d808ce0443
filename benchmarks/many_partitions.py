"""What do many partitions cost a client, beside librdkafka and beside full fetches?

`kafkalog.read_arrow` reads a topic of 2,000 partitions with a record of 100 bytes in each; confluent-kafka
consumes as many messages, with all partitions assigned at their beginning. Each round connects anew. Then a
client fetches from 10,000 idle partitions for a while, waiting half a second each time: the broker's
processor time for requests of an incremental session, which name nothing, is set against that for requests
that name all of them.
"""

from __future__ import annotations

import os

from confluent_kafka import Consumer, TopicPartition

import pyspark_kafkalog as kafkalog
from benchmarks.broker import processor_seconds
from benchmarks.harness import Row, cost, in_turn, interleave
from benchmarks.raw_client import RawClient, batch, produce_request
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

READ = 2_000
IDLE = int(os.environ.get("KAFKALOG_BENCHMARK_PARTITIONS", "10000"))
"""Idle partitions; fewer for a quick look."""
FETCHES = 10
_PER_PRODUCE = 500
_QUARTER = 4.0


def run(rounds: int = 5) -> list[Row]:
    """Two minutes."""
    with start_broker({"log.retention.ms": -1}) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("read", READ)
            data, _ = batch(1, 100)
            for first in range(0, READ, _PER_PRODUCE):
                client.call(produce_request("read", data, range(first, min(READ, first + _PER_PRODUCE))))
            client.create_topic("idle", IDLE)
        return [_read(broker.bootstrap_servers, rounds), _idle(broker, rounds)]


def _read(servers: str, rounds: int) -> Row:
    def ours() -> None:
        with kafkalog.read_arrow(servers, "read") as reader:
            assert sum(one.num_rows for one in reader) == READ

    def peer() -> None:
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition("read", number, 0) for number in range(READ)])
        left = READ
        while left:
            left -= len(consumer.consume(left, 60))
        consumer.close()

    took = interleave({"ours": ours, "peer": peer}, rounds)
    question = f"read_arrow of {READ:,} partitions with a record in each"
    return cost(question, took["ours"].median, took["peer"].median, "s", 1.0, "peer: confluent-kafka")


def _idle(broker: EmbeddedBroker, rounds: int) -> Row:
    wants = tuple(FetchPartition(number, partition_max_bytes=1 << 20) for number in range(IDLE))
    everything = (FetchTopic(topic="idle", partitions=wants),)
    with RawClient(broker.port) as client:

        def fetch(topics: tuple[FetchTopic, ...], session: int, epoch: int) -> FetchResponse:
            named = {"topics": topics, "session_id": session, "session_epoch": epoch}
            answer: FetchResponse = client.call(FetchRequest(max_wait_ms=500, min_bytes=1, **named))
            return answer

        def in_a_session() -> float:
            number = fetch(everything, 0, 0).session_id
            began = processor_seconds(broker.pid)
            for epoch in range(1, FETCHES + 1):
                assert not fetch((), number, epoch).responses
            return processor_seconds(broker.pid) - began

        def whole() -> float:
            began = processor_seconds(broker.pid)
            for _ in range(FETCHES):
                fetch(everything, 0, -1)
            return processor_seconds(broker.pid) - began

        used = in_turn({"session": in_a_session, "full": whole}, rounds)
    ours, peer = (1000 * each.median / FETCHES for each in used.values())
    question = f"broker's processor time for a fetch of {IDLE:,} idle partitions, in a session"
    return cost(question, ours, peer, "ms", _QUARTER, "peer: requests that name all")
