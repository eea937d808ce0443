"""How fast does a topic become Arrow, over the network and against librdkafka, and how fast is it filled?

Reading: our embedded broker holds one partition with keys of 10 bytes, 64 KiB batches. Ours: the partition
fetcher, 2 MiB a fetch, and the decoder, with either engine. The peer: confluent-kafka's consumer, its
messages gathered in lists and made into the same seven columns. Ours checks every CRC, the peer, as it is
by default, none. Every round begins with a new connection at offset 0 and must give every row.

Writing, for information: a value of 100 bytes per `send`, through to the broker's acknowledgement, and the
same rows from Arrow. Once with new clients, as a short program has them: librdkafka waits some half a second
for its producer id, which is most of its time. And once with clients that have sent before, which is
what the clients themselves are capable of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import kafkalog_broker
from benchmarks.harness import Row, compare, interleave
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.fetcher import PartitionFetcher
from pyspark_kafkalog.columnar.decoder import RecordBatchDecoder, arrow_schema
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.types import TopicPartition

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
SCHEMA = arrow_schema(COLUMNS)
BATCH_BYTES = 64 << 10
FETCH_BYTES = 1 << 20
"""Of 0.5 to 4 MiB the fastest, at 100 and at 1024 bytes: what was received is decoded from cache."""

READ_BYTES = {100: 128 << 20, 1024: 384 << 20}
"""What one round reads, of keys and values, by value size: so much that connecting does not count."""

PEER_PROPERTIES = {
    "group.id": "measured",
    "enable.auto.commit": False,
    # The peer at its best: by default it stops fetching for a second whenever its queue is full.
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1 << 20,
}

PEER_CHUNK = 10_000
WRITTEN = 200_000
WRITTEN_ON = 500_000
"""Records that a client with a connection sends: these alone count then, and they come sooner."""


def fill(servers: str, topic: str, count: int, value_bytes: int) -> None:
    create_topics(servers, [NewTopic(topic, 1)])
    value = bytes(i % 251 for i in range(value_bytes))
    with Producer({"bootstrap.servers": servers, "batch.size": BATCH_BYTES, "linger.ms": 50}) as producer:
        for start in range(0, count, 50_000):
            stop = min(count, start + 50_000)
            rows = {"key": [b"key-%06d" % i for i in range(start, stop)], "value": [value] * (stop - start)}
            producer.send_arrow(topic, pa.table(rows))


def own(servers: str, topic: str, count: int, engine: str | None) -> int:
    """Rows read by our fetcher; decoded by ``engine``, or only fetched if None."""
    config = ConsumerConfig(bootstrap_servers=servers, max_partition_fetch_bytes=FETCH_BYTES)
    cluster = Cluster(config)
    fetcher = PartitionFetcher(cluster, TopicPartition(topic, 0), 0, count, config=config)
    decoder = RecordBatchDecoder(topic=topic, partition=0, columns=COLUMNS, engine=engine or "plain")  # type: ignore[arg-type]
    rows = 0
    for fetched in fetcher:
        if engine is None:
            rows = fetched.next_offset
            continue
        for batch in decoder.decode(fetched.data, fetched.offset, count).batches:
            rows += batch.num_rows
    cluster.close()
    return rows


def peer(servers: str, topic: str, count: int) -> int:
    return sum(batch.num_rows for batch in peer_batches(servers, topic, count))


def peer_batches(servers: str, topic: str, count: int) -> Iterator[pa.RecordBatch]:
    """What confluent-kafka reads, as record batches of `PEER_CHUNK`."""
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, **PEER_PROPERTIES})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    rows = 0
    while rows < count:
        # Never more than there are: it would wait for the rest until its timeout.
        messages = consumer.consume(min(PEER_CHUNK, count - rows), 10)
        rows += len(messages)
        yield _record_batch(messages, topic)
    consumer.close()


def _record_batch(messages: list[Any], topic: str) -> pa.RecordBatch:
    count = len(messages)
    stamps = [message.timestamp() for message in messages]
    columns = (
        [message.key() for message in messages], [message.value() for message in messages],
        [topic] * count, [message.partition() for message in messages],
        [message.offset() for message in messages], [stamp[1] * 1000 for stamp in stamps],
        [stamp[0] - 1 for stamp in stamps],
    )  # fmt: skip
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def writers(servers: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Clients that send `WRITTEN` records of 100 bytes and wait until all are acknowledged."""
    value = bytes(100)
    rows = pa.table({"value": [value] * WRITTEN})

    def ours() -> None:
        with Producer({"bootstrap.servers": servers}) as producer:
            for _ in range(WRITTEN):
                producer.send("written", value)

    def arrow() -> None:
        with Producer({"bootstrap.servers": servers}) as producer:
            producer.send_arrow("written", rows)

    def kafka_python() -> None:
        import kafka

        producer = kafka.KafkaProducer(bootstrap_servers=servers)
        for _ in range(WRITTEN // 10):
            producer.send("written", value)
        producer.flush()
        producer.close()

    yield "ours, send", ours
    yield "ours, send_arrow", arrow
    yield "confluent-kafka", lambda: _produce(_librdkafka(servers), WRITTEN)
    yield "kafka-python", kafka_python


@contextmanager
def open_writers(servers: str) -> Iterator[dict[str, Callable[[], object]]]:
    """Clients that have sent before: `WRITTEN_ON` records of 100 bytes until all are acknowledged."""
    value, librdkafka = bytes(100), _librdkafka(servers)
    with Producer({"bootstrap.servers": servers}) as producer:

        def ours() -> None:
            for _ in range(WRITTEN_ON):
                producer.send("written", value)
            producer.flush()

        yield {"ours, send": ours, "confluent-kafka": lambda: _produce(librdkafka, WRITTEN_ON)}


def _librdkafka(servers: str) -> Any:
    import confluent_kafka

    return confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "queue.buffering.max.messages": WRITTEN_ON,
        }
    )


def _produce(producer: Any, count: int) -> None:
    value = bytes(100)
    for _ in range(count):
        producer.produce("written", value)
    producer.flush()


def read_rows(servers: str, value_bytes: int, goal: float, rounds: int) -> list[Row]:
    """The reading lines for one size of value; ``goal`` for numba."""
    count = READ_BYTES[value_bytes] // (value_bytes + 10)
    topic = f"measured-{value_bytes}"
    fill(servers, topic, count, value_bytes)
    contestants: dict[str, Callable[[], int]] = {
        "numba": lambda: own(servers, topic, count, "numba"),
        "plain": lambda: own(servers, topic, count, "plain"),
        "fetch only": lambda: own(servers, topic, count, None),
        "confluent-kafka": lambda: peer(servers, topic, count),
    }
    for name, read in contestants.items():
        if read() != count:
            raise RuntimeError(f"{name} did not read the whole topic")
    *ours, librdkafka = interleave(contestants, rounds, count).values()
    what = f"broker to record batch, {value_bytes} B"
    return [
        compare(f"{what}, {one.name}", one, librdkafka, "Mrec/s", wanted)
        for one, wanted in zip(ours, (goal, None, None), strict=True)
    ]


def write_rows(servers: str, rounds: int) -> list[Row]:
    create_topics(servers, [NewTopic("written", 4)])
    measured = interleave(dict(writers(servers)), rounds, WRITTEN)
    measured["kafka-python"].amount = WRITTEN / 10
    with open_writers(servers) as used_before:
        later = interleave(used_before, rounds, WRITTEN_ON)
    what = "send to acknowledgement, 100 B"
    return [
        *(
            compare(f"{what}, {name}, against {other}", measured[name], measured[other], "krec/s")
            for name in ("ours, send", "ours, send_arrow")
            for other in ("confluent-kafka", "kafka-python")
        ),
        compare(f"{what}, ours, send, clients that have sent before", *later.values(), "krec/s", 2),
    ]


def run(rounds: int = 5) -> list[Row]:
    with kafkalog_broker.start_broker({"log.segment.bytes": 1 << 28}) as running:
        servers = running.bootstrap_servers
        rows = read_rows(servers, 100, 12, rounds)
        rows += read_rows(servers, 1024, 3, rounds)
        rows += write_rows(servers, rounds)
    return rows
