"""onCorruptBatch: a corrupt batch fails the read, or is left out, named and counted, and nothing else is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog.cli.consume import read_ranges
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader, KafkaInputPartition
from pyspark_kafkalog.datasource.batch.load_reader import LoadReader
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import NewRecord, TopicPartition
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.client.scripted_log import INDEXED, NO_HEADER, DamagedLog, serving
from tests.support.columnar.rows import raw_batch

EACH, COUNT = 8, 12
END = EACH * COUNT
QUICK = {
    "kafka.retry.backoff.ms": "1",
    "fetchOffset.retryIntervalMs": "1",
    "kafka.fetch.max.wait.ms": "1",
    "kafkaConsumer.pollTimeoutMs": "5000",
}
FORMATS = {
    "v2": (2, Codec.NONE),
    "v2 gzip": (2, Codec.GZIP),
    "v1": (1, Codec.NONE),
    "v0 gzip": (0, Codec.GZIP),
    "v1 gzip": (1, Codec.GZIP),
}


def entries(name: str = "v2") -> list[bytes]:
    magic, codec = FORMATS[name]
    each = 1 if (magic, codec) == (1, Codec.NONE) else EACH
    found = []
    for base in range(0, END, each):
        records = [NewRecord(b"%d" % offset, timestamp=1) for offset in range(base, base + each)]
        if magic == 2:
            found.append(encode_batch(records, codec=codec, base_offset=base))
        else:
            found.append(encode_set(records, magic=magic, codec=codec, base_offset=base))
    return found


def options(broker: ScriptedBroker, **given: str) -> Any:
    known = {"kafka.bootstrap.servers": broker.address, "subscribe": "t", **QUICK, "onCorruptBatch": "skip"}
    return parse_batch_options({**known, **given})


def read(log: DamagedLog, start: int = 0, end: int = END, **given: str) -> list[int]:
    """The offsets that a task gives, each of which has its own number for its value."""
    with serving(log) as broker:
        source = BatchReader(options(broker, **given), ("value", "offset"))
        found = []
        for batch in source.read(KafkaInputPartition("t", 0, start, end, 0)):
            offsets = batch.column("offset").to_pylist()
            assert batch.column("value").to_pylist() == [b"%d" % offset for offset in offsets]
            found += offsets
        return found


def consumed(log: DamagedLog, start: int = 0, end: int = END, **given: str) -> list[int]:
    """The same by way of ``kafkalog consume``."""
    tp, told, found = TopicPartition("t", 0), [], []
    with serving(log) as broker:
        config = ConsumerConfig(
            bootstrap_servers=broker.address,
            retry_backoff_ms=1,
            isolation_level=given.get("kafka.isolation.level", "read_uncommitted"),
        )
        with closing(Cluster(config)) as cluster:
            reading = read_ranges(cluster, {tp: (start, end)}, config, lambda *said: told.append(said))
            for _, records in reading:
                assert all(r.value == b"%d" % r.offset for r in records)
                found += [r.offset for r in records]
    assert all(said[0] == tp for said in told)
    return found


both = pytest.mark.parametrize("reading", [read, consumed], ids=["task", "consume"])


def all_but(start: int, end: int) -> list[int]:
    return [*range(start), *range(end, END)]


COMMITTED = {"kafka.isolation.level": "read_committed"}
Reading = Callable[..., list[int]]
Damage = Callable[[DamagedLog, int], None]
V2_DAMAGE: dict[str, Damage] = {
    "a byte of a record": lambda log, at: log.flip(at, -2),
    "the checksum": lambda log, at: log.flip(at, 18),
    "the length, now too large for any fetch": lambda log, at: log.flip(at, 8, 6),
    "the length, somewhat larger": lambda log, at: log.flip(at, 10),
    "the length, smaller": lambda log, at: log.flip(at, 11, 4),
    "the length, negative": lambda log, at: log.flip(at, 8, 7),
    "the magic, now unknown": lambda log, at: log.flip(at, 16, 3),
    "the magic, now that of v0": lambda log, at: log.flip(at, 16, 1),
    "the last offset's delta": lambda log, at: log.flip(at, 26, 5),
    "the base offset, above the high watermark": lambda log, at: log.flip(at, 2, 1),
    "the base offset by 8": lambda log, at: log.flip(at, 7, 3),
    "the base offset by 16": lambda log, at: log.flip(at, 7, 4),
    "the base offset, negative": lambda log, at: log.flip(at, 0, 7),
    "all of it": lambda log, at: log.damage(at, bytes(len(log._stored[at]))),
}


@pytest.mark.long("every kind of damage in every format")
@pytest.mark.parametrize(("reading", "at"), [(read, 0), (consumed, 6), (read, COUNT - 1)])
@pytest.mark.parametrize("finds", ["all", "sound", "claims"])
@pytest.mark.parametrize("damage", V2_DAMAGE)
def test_one_batch_is_left_out_whatever_is_wrong_with_it(
    reading: Reading, damage: str, at: int, finds: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = DamagedLog(entries(), finds=finds)
    V2_DAMAGE[damage](log, at)
    start, end = at * EACH, (at + 1) * EACH
    if finds == "claims" and at == 0 and log.claimed_end(0) == NO_HEADER:
        end = INDEXED * EACH  # no answer has what lies before that
    with caplog.at_level(logging.WARNING):
        found = reading(log)
    assert found == all_but(start, end)
    said = [r.getMessage() for r in caplog.records if "skipped as corrupt" in r.getMessage()]
    if finds == "claims" and at == 0 and log.claimed_end(0) < 0:
        assert said == [], "a broker that passes over it leaves a gap, and gaps are legal"
    else:
        assert [one.split(" are skipped")[0] for one in said] == [f"t-0: offsets [{start}, {end})"]


@both
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_continues_after_a_wrong_checksum_and_a_wrong_length(
    reading: Reading, name: str
) -> None:
    good = entries(name)
    each = END // len(good)
    at = len(good) // 2
    for byte, bit in ((-2, 0), (8, 6), (11, 5), (0, 7), (3, 2)):
        log = DamagedLog(good)
        log.flip(at, byte, bit)
        assert reading(log) == all_but(at * each, (at + 1) * each), (byte, bit)


@pytest.mark.parametrize(
    "rubbish",
    [
        raw_batch(b"no gzip at all", EACH, base_offset=48, attributes=Codec.GZIP),
        raw_batch(b"\xff" * 100, EACH, base_offset=48),
        raw_batch(b"\0" * 100, EACH, base_offset=48),
        raw_batch(compress(Codec.ZSTD, bytes(200 << 20)), EACH, base_offset=48, attributes=Codec.ZSTD),
    ],
)
def test_a_batch_of_rubbish_under_a_right_checksum_is_left_out_by_its_own_offsets(rubbish: bytes) -> None:
    log = DamagedLog(entries())
    log.damage(6, rubbish)
    assert read(log) == all_but(48, 56)
    with pytest.raises(
        (CorruptMessage, MessageTooLarge), match="set the source option onCorruptBatch to skip"
    ):
        read(log, onCorruptBatch="fail")


def test_several_corrupt_batches_are_left_out_each_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    log = DamagedLog(entries(), limit=250)
    for at in (1, 4, 5, 9):
        log.flip(at, -2)
    with caplog.at_level(logging.WARNING):
        found = read(log, 4, END - 4)
    assert found == [o for o in range(4, END - 4) if o // EACH not in (1, 4, 5, 9)]
    said = [r.getMessage() for r in caplog.records if "skipped as corrupt" in r.getMessage()]
    assert [s.split(" are skipped")[0] for s in said] == [
        "t-0: offsets [8, 16)", "t-0: offsets [32, 48)", "t-0: offsets [72, 80)",
    ]  # fmt: skip


@both
def test_only_what_belongs_to_the_range_is_left_out(reading: Reading) -> None:
    log = DamagedLog(entries())
    log.flip(6, -2)
    assert reading(log, 40, 50) == list(range(40, 48))
    assert reading(log, 50, 60) == list(range(56, 60))
    assert reading(log, 50, 54) == []


def test_what_was_damaged_on_its_way_is_fetched_once_more_and_nothing_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = DamagedLog(entries())
    log.flip(6, -2)

    def once(request: Any) -> Any:
        answer = log.fetch(request)
        log.mend()
        return answer

    with serving(log) as broker, caplog.at_level(logging.WARNING):
        broker.default(ApiKey.FETCH, once)
        source = BatchReader(options(broker), ("offset",))
        rows = source.read(KafkaInputPartition("t", 0, 0, END, 0))
        assert [o for b in rows for o in b["offset"].to_pylist()] == list(range(END))
        assert len(broker.received(ApiKey.API_VERSIONS)) == 2, "the second fetch has a connection of its own"
    assert "left out" not in caplog.text


def test_a_codec_that_kafka_does_not_have_is_not_left_out() -> None:
    """Its checksum is right: it may be sound, and of a newer release."""
    log = DamagedLog(entries())
    log.damage(6, raw_batch(b"what is this", EACH, base_offset=48, attributes=6))
    with pytest.raises(KafkaError, match="codec"):
        read(log)


@both
def test_a_corrupt_marker_is_left_out_and_those_after_it_count(reading: Reading) -> None:
    def of_producer(base: int, values: range) -> bytes:
        records = [NewRecord(b"%d" % o, timestamp=1) for o in values]
        return encode_batch(
            records, base_offset=base, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
        )

    def marker(base: int, kind: ControlType) -> bytes:
        return encode_control(kind, producer_id=7, producer_epoch=0, timestamp=1, base_offset=base)

    log = DamagedLog(
        [
            of_producer(0, range(4)),
            marker(4, ControlType.ABORT),
            of_producer(5, range(5, 8)),
            marker(8, ControlType.COMMIT),
            *(encode_batch([NewRecord(b"%d" % o, timestamp=1)], base_offset=o) for o in range(9, END)),
        ]
    )
    log.aborted, log.aborted_until = ((7, 0),), 5
    assert reading(log, **COMMITTED) == [5, 6, 7, *range(9, END)]
    log.flip(1, -2)
    assert reading(log, **COMMITTED) == [5, 6, 7, *range(9, END)]


# --- loads


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.at(tmp_path, "load")


def loading(broker: ScriptedBroker, ledger: Ledger) -> LoadReader:
    where = {
        "loadName": ledger.name,
        "offsetsPath": str(Path(ledger.location).parent),
        "commitOffsets": "stage",
        "maxRecordsPerPartition": "48",
    }
    found = options(broker, **where)
    return LoadReader(found, ("offset",), found.load)


def loaded(source: LoadReader, tasks: Iterator[Any]) -> list[int]:
    return [o for task in tasks for b in source.read(task) for o in b["offset"].to_pylist()]


def test_a_load_counts_what_it_left_out_in_receipt_commit_and_audit(ledger: Ledger) -> None:
    log = DamagedLog(entries())
    log.flip(2, -2)
    log.flip(8, 2, 1)
    with serving(log) as broker:
        source = loading(broker, ledger)
        found = loaded(source, iter(source.partitions()))
    assert found == [o for o in range(END) if o // EACH not in (2, 8)]
    plan = ledger.plan(1)
    assert [r.skipped for r in ledger.receipts(plan)] == [((16, 24),), ((64, 72),)]
    commit = ledger.head()
    assert commit is not None
    assert (commit.records, commit.skipped, commit.missing) == (END - 2 * EACH, 2 * EACH, 0)
    assert ledger.verify() == []
