"""A foreign client keeps its fetch session with us while it reads, pauses, seeks and gets more partitions."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from pyspark_kafkalog import NewTopic, Producer, create_topics
from tests.support.until import until


def test_kafka_python_reads_in_one_session(servers: str, topic_name: str) -> None:
    rng = random.Random("one session")
    create_topics(servers, [NewTopic(topic_name, 60, 1, {})])
    partitions = [TopicPartition(topic_name, number) for number in range(60)]
    got: dict[int, list[int]] = defaultdict(list)
    sent: dict[int, list[int]] = defaultdict(list)
    consumer: Any = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    with closing(consumer), Producer({"bootstrap.servers": servers}) as producer:

        def read_on() -> bool:
            for at, records in consumer.poll(timeout_ms=100).items():
                got[at.partition] += [int(record.value) for record in records]
            return {at.partition: got[at.partition] for at in consumer.assignment()} == {
                at.partition: sent[at.partition] for at in consumer.assignment()
            }

        def session_now() -> int:
            (session,) = consumer._fetcher._session_handlers.values()
            return int(session.next_metadata.session_id)

        sessions: set[int] = set()
        consumer.assign(partitions[:40])
        for turn in range(12):
            for _ in range(5):
                number = rng.randrange(60)
                sent[number].append(turn)
                producer.send(topic_name, b"%d" % turn, partition=number)
            producer.flush()
            until(read_on)
            sessions.add(session_now())
            if turn == 4:
                consumer.assign(partitions[10:])
            if turn == 8:
                consumer.seek_to_beginning()
                got.clear()
        assert len(sessions) == 1, "one session for all of it"
        assert 0 not in sessions
