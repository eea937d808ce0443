"""Writes the data of this directory with the code on PYTHONPATH: see README.md.

    python tests/data/release-1/write.py [DIR]

It goes to DIR, by default to this directory. Only public names are used here, and foreign clients where there
is none, so that the script runs on any release.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from crc32c import crc32c

import kafkalog_broker
import pyspark_kafkalog as kafkalog

HERE = Path(__file__).parent
ROOT = Path("/tmp/kafkalog-release-1")
OFFSETS = ROOT / "ledgers"
LAKE = ROOT / "lake"
STARTS = ROOT / "starts"
TIME_MS = 1_750_000_000_000
"""15 June 2025, 15:06:40 UTC: the first record's time; each value is so many seconds later."""

PROPERTIES = {
    "listeners": "PLAINTEXT://127.0.0.1:0,KAFKA07://127.0.0.1:0",
    "node.id": 3,
    "log.retention.ms": -1,
    "log.segment.bytes": 700,
    "log.index.interval.bytes": 100,
    "log.flush.interval.messages": 1,
    "log.segment.delete.delay.ms": 0,
    "offsets.topic.num.partitions": 2,
    "offsets.retention.minutes": 2_000_000_000 // 60_000,
    "producer.id.expiration.ms": 2_000_000_000,
    "num.partitions": 2,
    "transaction.state.log.num.partitions": 1,
    "log.cleaner.backoff.ms": 200,
}
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "flights": (2, {}),
    "losses": (1, {"segment.bytes": "400", "retention.bytes": "500"}),
    "codecs": (1, {}),
    "sequences": (1, {}),
    "sets-v0": (1, {"message.format.version": "producer"}),
    "sets-v1": (1, {"message.format.version": "producer"}),
    "stored-as-v1": (1, {"message.format.version": "0.10.2"}),
    "append-time": (1, {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}),
    "old": (2, {"generation": "0.7"}),
    "transactions": (1, {}),
    "newest": (1, {"cleanup.policy": "compact", "segment.bytes": "400", "min.cleanable.dirty.ratio": "0"}),
}


def note(**facts: object) -> None:
    """Something that the tests must know and that nobody can choose."""
    path = ROOT / "facts.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | facts, indent=2) + "\n")


# ---- records


def send(
    server: Any, topic: str, values: Iterable[int], partition: int = 0, *, each: int = 5, **properties: str
) -> None:
    """Numbers as text, ``each`` of them in a batch; keys, times and headers follow from the number."""
    version = properties.get("message_format")
    given = {name.replace("_", "."): value for name, value in properties.items()}
    given |= {"bootstrap.servers": server.bootstrap_servers, "linger.ms": "1000"}
    with kafkalog.Producer(given) as producer:
        for count, n in enumerate(values, 1):
            headers = () if version or topic == "stored-as-v1" else (("n", b"%d" % n),)
            time_ms = None if version == "v0" else TIME_MS + 1000 * n
            key = None if n % 4 == 3 else b"k%d" % n
            value = None if n % 10 == 9 else b"%d" % n
            sent = producer.send(
                topic, value, key, headers=headers, timestamp_ms=time_ms, partition=partition
            )
            if count % each == 0:
                producer.flush()
                sent.result()


def send_in_transaction(server: Any, values: Iterable[int], end: str) -> None:
    """Records of a transaction with this ``end``: commit, abort, or none of them."""
    given = {
        "bootstrap.servers": server.bootstrap_servers,
        "transactional.id": end,
        "transaction.timeout.ms": "900000",
    }
    with kafkalog.Producer(given) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for n in values:
            producer.send("transactions", b"%d" % n, timestamp_ms=TIME_MS + 1000 * n)
        producer.flush()
        {
            "commit": producer.commit_transaction,
            "abort": producer.abort_transaction,
            "open": producer.prepare_transaction,
        }[end]()


def fill_compacted(server: Any) -> None:
    """Three records of each key, of which the cleaner leaves the last."""
    for _ in range(3):
        send(server, "newest", (n for n in range(12) if n % 4 != 3), each=3)
    segments = ROOT / "broker" / "newest_0" / "segments.list"
    until(lambda: segments.exists() and "cleaned 18\n" in segments.read_text())


def until(holds: Callable[[], bool]) -> None:
    """Wait for what the broker does by itself."""
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("the broker did not do it")
        time.sleep(0.1)


def entry07(payload: bytes, magic: int = 1, attributes: int = 0) -> bytes:
    head = bytes([magic]) if magic == 0 else bytes([magic, attributes])
    message = head + struct.pack(">I", zlib.crc32(payload)) + payload
    return struct.pack(">i", len(message)) + message


def packed07(*entries: bytes) -> bytes:
    return entry07(gzip.compress(b"".join(entries), mtime=0), attributes=1)


def send07(server: Any, topic: str, partition: int, *entries: bytes) -> None:
    """Produce one set of 0.7; returns when it can be read."""
    name, data = struct.pack(">h", len(topic)) + topic.encode(), b"".join(entries)
    with socket.create_connection((server.host, server.port_of("KAFKA07")), 20) as wire:

        def ask(body: bytes, *, answered: bool) -> bytes:
            wire.sendall(struct.pack(">i", len(body)) + body)
            size = struct.unpack(">i", wire.recv(4, socket.MSG_WAITALL))[0] if answered else 0
            return wire.recv(size, socket.MSG_WAITALL) if size else b""

        ask(struct.pack(">h", 0) + name + struct.pack(">ii", partition, len(data)) + data, answered=False)
        # The broker answers a connection's requests in their order.
        ask(struct.pack(">h", 4) + name + struct.pack(">iqi", partition, -1, 1), answered=True)


def commit(server: Any, group: str, topic: str, partition: int, offset: int, metadata: str) -> None:
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": group})
    place = TopicPartition(topic, partition, offset, metadata=metadata)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


# ---- loads


def today(server: Any, topic: str = "flights", **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": topic, **more}


def of07(server: Any, **more: str) -> dict[str, str]:
    where = f"3:{server.host}:{server.port_of('KAFKA07')}"
    return {"protocol": "0.7", "broker.list": where, "subscribe": "old", "includeBroker": "true", **more}


def load(spark: Any, name: str, options: dict[str, Any]) -> Any:
    return kafkalog.load(spark, name=name, offsets=OFFSETS, **options)


def stage(spark: Any, name: str, options: dict[str, str]) -> None:
    more = {"loadName": name, "offsetsPath": str(OFFSETS), "commitOffsets": "stage"}
    spark.read.format("kafkalog").options(**options, **more).load().foreach(lambda row: None)


def command(*words: str) -> bytes:
    """What ``kafkalog`` prints."""
    return subprocess.run(
        [sys.executable, "-m", "pyspark_kafkalog.cli", *words], check=True, stdout=subprocess.PIPE
    ).stdout


def load_flights(spark: Any, server: Any) -> None:
    """Commits 1 to 8 in every mode, and plan 9 without a commit."""
    from pyspark.sql import functions as f

    options = today(server)
    with load(spark, "flights", {**options, "kafka.group.id": "loaders"}) as one:
        one.write_parquet(LAKE / "flights")
    send(server, "flights", range(20, 28))
    send(server, "flights", range(110, 113), 1, compression_type="lz4")
    with load(spark, "flights", {**options, "includeHeaders": "true"}) as two:
        bad = f.when(f.col("key").isNull(), f.lit("no key"))
        good = two.dead_letters(two.df.withColumn("reason", bad))
        two.write_parquet(LAKE / "flights", good.drop("headers"))
        two.write_orc(LAKE / "by-hour", two.df.drop("headers"), partition_by_time="timestamp", grain="hour")
    send(server, "flights", range(28, 30))
    with load(spark, "flights", options) as three:
        three.keep()
    with load(spark, "flights", {**options, "on_pending": "discard", "receipts": False}) as four:
        four.df.count()
        four.done()
    send(server, "flights", range(30, 34))
    with load(spark, "flights", {**options, "minPartitions": "2"}) as five:
        five.df.count()
        five.done()
    command("gc", "flights", "--offsets", str(OFFSETS))
    command("rewind", "flights", "--offsets", str(OFFSETS), "--to", "commit:4", "--yes")
    stage(spark, "flights", options)
    send(server, "flights", range(34, 36))
    with load(spark, "flights", options) as eight:
        eight.write_parquet(LAKE / "flights")
    send(server, "flights", range(36, 40))
    send(server, "flights", range(113, 116), 1)
    with load(spark, "flights", options) as nine:
        nine.df.count()
        nine.keep()
    for path in [
        *OFFSETS.glob("flights/receipts/00000009/flights/1/*"),
        *OFFSETS.glob("flights/runs/00000009/*/*"),
    ]:
        path.unlink()  # as if a task had died, and the driver with it


def load_losses(spark: Any, start: Start) -> Any:
    """What receipts say of records that are not there. Returns the last broker, which runs."""
    server = start()
    send(server, "losses", range(20), each=4)
    server.kill()
    partition = ROOT / "broker" / "losses_0"
    first, *_, last = sorted(partition.glob("*.kafka"))
    data = bytearray(last.read_bytes())
    at = batches(last)[-1]
    struct.pack_into(">i", data, at + LAST_OFFSET_DELTA, 8)  # as compaction leaves a batch: no records 4 to 8
    struct.pack_into(">I", data, at + CRC, crc32c(bytes(data[at + CRC + 4 :])))
    last.write_bytes(data)
    (ROOT / "broker" / "recovery-points").unlink()  # so that all of it is looked at
    server = start()
    send(server, "losses", range(20, 28), each=4)
    server.stop()
    data = bytearray(first.read_bytes())
    data[batches(first)[1] + 80] ^= 1
    first.write_bytes(data)
    server = start()
    careless = {"onCorruptBatch": "skip", "failOnDataLoss": "false"}
    with load(spark, "losses", today(server, "losses", **careless)) as one:
        one.write_parquet(LAKE / "losses")
    send(server, "losses", range(28, 60), each=4)
    with load(spark, "losses", today(server, "losses")) as two:
        two.keep()
    server.stop()
    server = start({"log.retention.check.interval.ms": 50})
    until(lambda: sum(path.stat().st_size for path in partition.glob("*.kafka")) <= 900)
    server.stop()
    server = start()
    with load(spark, "losses", today(server, "losses", **careless)) as two:
        two.write_parquet(LAKE / "losses")
    return server


def load_old(spark: Any, server: Any) -> None:
    """Commits 1 to 3 of a topic of 0.7, and a summary instead of the receipts of the first two."""
    with load(spark, "old", of07(server)) as one:
        one.write_parquet(LAKE / "old")
    send07(server, "old", 1, entry07(b"p"), packed07(entry07(b"q"), entry07(b"r")))
    stage(spark, "old", of07(server))
    send07(server, "old", 0, entry07(b"s"))
    with load(spark, "old", of07(server)) as three:
        three.write_parquet(LAKE / "old")
    command("gc", "old", "--offsets", str(OFFSETS))


def load_warehouse(spark: Any, server: Any) -> None:
    """Commits 1 to 4 in a database: ranges, a frame, a rewind, and ranges instead of the frame."""
    url, options = f"sqlite:///{ROOT}/warehouse.db", today(server)
    with load(spark, "warehouse", {**options, "endingOffsets": '{"flights":{"0":10,"1":5}}'}) as one:
        one.write_sql(url, "flights")
    with load(spark, "warehouse", {**options, "endingOffsets": '{"flights":{"0":20,"1":5}}'}) as two:
        two.write_sql(url, "flights", df=two.df.where("key is not null"))
    command("rewind", "warehouse", "--offsets", str(OFFSETS), "--to", "commit:1", "--yes")
    with load(spark, "warehouse", {**options, "endingOffsets": '{"flights":{"0":15,"1":5}}'}) as four:
        four.write_sql(url, "flights")
    with sqlite3.connect(ROOT / "warehouse.db") as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("VACUUM")


def load_small(spark: Any, server: Any) -> None:
    """Commits 1 to 3, a compaction of their files, which are removed, and a load after it."""
    for end in (5, 10, 15, 20):
        ending = f'{{"flights":{{"0":{end},"1":5}}}}'
        with load(spark, "small", {**today(server), "endingOffsets": ending}) as one:
            one.write_parquet(LAKE / "small")
        if end == 15:
            kafkalog.compact(spark, LAKE / "small")
            command("gc", "small", "--offsets", str(OFFSETS), "--older-than", "0s")


# ---- streams


def stream(
    spark: Any, name: str, options: dict[str, str], *, fails_in: int | None = None
) -> dict[int, list[str]]:
    """Run a query until all is read, or its sink fails in a batch; the values of each batch."""
    seen = {}

    def take(frame: Any, number: int) -> None:
        if number == fails_in:
            raise RuntimeError("the sink fails")
        seen[number] = sorted(str(row.offset) for row in frame.select("offset").collect())

    reader = spark.readStream.format("kafkalog").options(**options, offsetsPath=str(STARTS), streamName=name)
    writer = reader.load().writeStream.foreachBatch(take).trigger(availableNow=True)
    with suppress(Exception) if fails_in is not None else nullcontext():
        writer.option("checkpointLocation", str(ROOT / "checkpoints" / name)).start().awaitTermination()
    return seen


def stream_all(spark: Any, server: Any) -> None:
    """Queries that stopped: in their third batch, in their first one, and after two of 0.7."""
    options = today(server, startingOffsets="earliest", maxOffsetsPerTrigger="12")
    assert len(stream(spark, "third", options, fails_in=2)) == 2
    options = today(server, startingTimestamp=str(TIME_MS + 15_000))
    assert not stream(spark, "first", options, fails_in=0)
    options = of07(server, startingOffsets="earliest")
    assert len(stream(spark, "old", options)) == 1
    send07(server, "old", 0, entry07(b"n"), entry07(b"o", magic=0))
    assert len(stream(spark, "old", options)) == 1


# ---- a broker's directory


def fill(server: Any) -> None:
    """Topics of every family, and a group's offsets."""
    topics = [kafkalog.NewTopic(name, count, configs=configs) for name, (count, configs) in TOPICS.items()]
    kafkalog.create_topics(server.bootstrap_servers, topics)
    send(server, "flights", range(20))
    send(server, "flights", range(100, 110), 1)
    for count, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        send(server, "codecs", range(10 * count, 10 * count + 10), compression_type=codec)
    for version in ("v0", "v1"):
        for count, codec in enumerate(("none", "gzip", "snappy")):
            new = range(10 * count, 10 * count + 10)
            send(server, f"sets-{version}", new, message_format=version, compression_type=codec)
    send(server, "stored-as-v1", range(10), enable_idempotence="false")
    send(server, "append-time", range(10))
    send(server, "sequences", range(20), each=2, enable_idempotence="true")
    send_in_transaction(server, (0, 1), "commit")
    send_in_transaction(server, (2, 3), "abort")
    fill_compacted(server)
    packed = packed07(entry07(b"b"), entry07(b"c", magic=0))
    send07(server, "old", 0, entry07(b"a"), packed, entry07(b"d", magic=0))
    for n in range(60):
        send07(server, "old", 1, entry07(b"message %d of sixty" % n))
    commit(server, "readers", "flights", 0, 7, "at seven")
    commit(server, "readers", "flights", 1, 3, "")
    commit(server, "readers", "flights", 0, 12, "at twelve")
    name, value = "log.cleaner.delete.retention.ms", "98765432"
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ResourceType.BROKER, "3", incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    admin.incremental_alter_configs([broker])[broker].result()


def add_user() -> None:
    """A SCRAM user, in the data directory of the broker, which does not run."""
    properties = ROOT / "server.properties"
    properties.write_text(f"log.dirs={ROOT}/broker\nnode.id=3\n")
    words = ["add-user", str(properties), "alice", "--mechanism", "SCRAM-SHA-256"]
    subprocess.run([sys.executable, "-m", "kafkalog_broker", *words], input=b"secret\n", check=True)
    properties.unlink()


CRC, LAST_OFFSET_DELTA, PRODUCER_ID = 17, 23, 43
"""Where these stand in a batch v2."""


def batches(segment: Path) -> list[int]:
    """Where each batch v2 of a segment begins."""
    data, found, at = segment.read_bytes(), [], 0
    while at < len(data):
        found.append(at)
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    return found


def dump(server: Any, name: str) -> None:
    """What the broker that wrote a directory gives to readers of committed records: a file for each topic."""
    (ROOT / name).mkdir()
    for topic in TOPICS:
        if topic != "losses":
            words = ("--format", "json", "--isolation-level", "read_committed")
            told = command("consume", topic, *words, "-b", server.bootstrap_servers)
            (ROOT / name / f"{topic}.jsonl").write_bytes(told)


Start = Callable[..., Any]


def main() -> None:
    from pyspark.sql import SparkSession

    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir()
    kafkalog.ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    configs = {
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "OFF",
        "spark.sql.session.timeZone": "UTC",
    }  # fmt: skip
    spark = SparkSession.builder.master("local[2]").config(map=configs).getOrCreate()

    def start(more: dict[str, Any] | None = None) -> Any:
        (ROOT / "broker").mkdir(exist_ok=True)
        return kafkalog_broker.start_broker({**PROPERTIES, **(more or {})}, data_dir=ROOT / "broker")

    server = start()
    fill(server)
    stream_all(spark, server)
    load_warehouse(spark, server)
    load_flights(spark, server)
    load_old(spark, server)
    load_small(spark, server)
    server.stop()
    add_user()
    server = load_losses(spark, start)
    (ROOT / "histories").mkdir()
    for path in sorted(OFFSETS.iterdir()):
        command("verify", path.name, "--offsets", str(OFFSETS))
        for name, more in (("commits", []), ("partitions", ["--partitions"])):
            where = ROOT / "histories" / f"{path.name}.{name}.jsonl"
            where.write_bytes(command("history", path.name, "--offsets", str(OFFSETS), "--json", *more))
    spark.stop()
    dump(server, "records")
    send_in_transaction(server, (4,), "open")
    server.kill()
    shutil.copytree(ROOT / "broker", ROOT / "killed")
    newest = max((ROOT / "killed" / "flights_0").glob("*.kafka"))
    newest.write_bytes(newest.read_bytes() + newest.read_bytes()[:50])  # as an append that was cut short
    server.start()
    server.stop()
    (ROOT / "broker").rename(ROOT / "stopped")
    for log in ROOT.glob("*/broker.log"):
        log.unlink()
    first = next(iter(sorted((ROOT / "stopped" / "sequences_0").glob("*.kafka"))))
    note(
        release=kafkalog.__version__,
        producer_id=struct.unpack_from(">q", first.read_bytes(), PRODUCER_ID)[0],
    )
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(ROOT.iterdir()):
        if path.is_dir():
            shutil.rmtree(target / path.name, ignore_errors=True)
            shutil.copytree(path, target / path.name)
        else:
            shutil.copy(path, target)
    shutil.rmtree(ROOT)  # a ledger refuses to go on while the one that it was copied from is there


if __name__ == "__main__":
    main()
