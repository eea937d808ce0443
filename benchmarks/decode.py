"""How fast are fetched bytes made into Arrow, against the decoders of other clients?

The same v2 batches go to our decoder with either engine, to aiokafka's decoder in C and to kafka-python's
in Python; the peers' records are gathered in lists and made into the same seven columns. Four answers of 1
MiB each, 64 KiB batches unless a row says how many records a batch has, 10-byte keys. Before anything is
timed, all must give the same table.

Messages of v0 and v1 go to the same decoders but kafka-python's, plain and in compressed sets.

Messages of Kafka 0.7 have no decoder in use today to be measured against: there the compiled engine's peers
are its twin in plain Python and our own decoder of v2 batches, over messages with values of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.harness import Measurement, Row, compare, in_stride
from pyspark_kafkalog.columnar.decoder import KAFKA_07, RecordBatchDecoder
from pyspark_kafkalog.formats import legacy
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.v07 import encode_message, encode_set
from pyspark_kafkalog.types import NewRecord

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
TOPIC, PARTITION = "measured", 0
BATCH_BYTES = 64 << 10
ANSWER_BYTES = 1 << 20
ANSWERS = 4
RECORD_OVERHEAD = 20  # bytes of a record beside its value: a key of 10, lengths and deltas
MESSAGE_OVERHEAD = 44  # the same of a message of v1
END = (1 << 63) - 1
OURS, PLAIN, AIOKAFKA = "own, numba", "own, plain", "aiokafka (C)"
UNIT = "Mrecords/s"

Decoder = Callable[[int, bytes], list[pa.RecordBatch]]  # an answer with its first offset to Arrow


def answers(
    value_bytes: int, batch_records: int | None = None, codec: Codec = Codec.NONE
) -> list[tuple[int, bytes]]:
    """Fetch answers with their first offsets: values of ``value_bytes``, timestamps and keys that differ.
    Without ``batch_records`` batches have 64 KiB.
    """
    count = batch_records or BATCH_BYTES // (value_bytes + RECORD_OVERHEAD)
    made: list[tuple[int, bytes]] = []
    offset = 0
    value = bytes(i % 251 for i in range(value_bytes))
    for _ in range(ANSWERS):
        first, parts, size = offset, [], 0
        while size < ANSWER_BYTES - BATCH_BYTES // 2:
            batch = encode_batch(_rows(value, offset, count), codec=codec, base_offset=offset, leader_epoch=0)
            offset += count
            parts.append(batch)
            size += len(batch)
        made.append((first, b"".join(parts)))
    return made


def answers_of_messages(value_bytes: int, magic: int, codec: Codec) -> list[tuple[int, bytes]]:
    """As `answers`, of messages of v0 or v1; with a codec in sets of 64 KiB."""
    made: list[tuple[int, bytes]] = []
    offset = 0
    value = bytes(i % 251 for i in range(value_bytes))
    count = BATCH_BYTES // (value_bytes + MESSAGE_OVERHEAD)
    for _ in range(ANSWERS):
        first, parts = offset, []
        for _ in range(ANSWER_BYTES // BATCH_BYTES):
            rows = _rows(value, offset, count)
            parts.append(legacy.encode_set(rows, magic=magic, codec=codec, base_offset=offset))
            offset += count
        made.append((first, b"".join(parts)))
    return made


def _rows(value: bytes, first: int, count: int) -> list[NewRecord]:
    return [
        NewRecord(value, b"key-%06d" % (n % 1_000_000), 1_700_000_000_000 + n)
        for n in range(first, first + count)
    ]


def answers_07(value_bytes: int, codec: Codec = Codec.NONE) -> list[tuple[int, bytes]]:
    """Fetch answers of 0.7 with their first offsets: values of ``value_bytes``, compressed by 64 KiB."""
    value = bytes(i % 251 for i in range(value_bytes))
    size = len(encode_message(value))
    entry = encode_set([value] * (BATCH_BYTES // size), codec=codec)
    answer = entry * (ANSWER_BYTES // BATCH_BYTES)
    return [(number * len(answer), answer) for number in range(ANSWERS)]


def own(engine: Any, *generation: Any) -> Decoder:
    """Our decoder with this engine, of v2 batches and older ones, or of another generation."""
    decoder = RecordBatchDecoder(
        *generation, topic=TOPIC, partition=PARTITION, columns=COLUMNS, engine=engine
    )
    return lambda start, data: decoder.decode(memoryview(data), start, END).batches


def peer(memory_records: Callable[[bytes], Any]) -> Decoder:
    """A client's decoder, which gives batches of record objects; columns are made of lists."""

    def decode(_: int, data: bytes) -> list[pa.RecordBatch]:
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        offsets: list[int] = []
        times: list[int] = []
        kinds: list[int] = []
        for batch in _batches(memory_records(data)):
            if not batch.validate_crc():  # as these clients' consumers do, and as we do
                raise ValueError("bad checksum")
            for record in batch:
                keys.append(record.key)
                values.append(record.value)
                offsets.append(record.offset)
                # v0 has neither; Spark's connector has -1 for both.
                times.append(-1000 if record.timestamp is None else record.timestamp * 1000)
                kinds.append(-1 if record.timestamp_type is None else record.timestamp_type)
        count = len(offsets)
        columns = [
            pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.repeat(pa.scalar(TOPIC), count),
            pa.repeat(pa.scalar(PARTITION, pa.int32()), count), pa.array(offsets, pa.int64()),
            pa.array(times, pa.timestamp("us", "UTC")), pa.array(kinds, pa.int32()),
        ]  # fmt: skip
        return [pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))]

    return decode


def _batches(records: Any) -> Iterable[Any]:
    while (batch := records.next_batch()) is not None:
        yield batch


def contestants() -> dict[str, Decoder]:
    """The decoders that know all messages from v0 on, by name."""
    from aiokafka.record._crecords import MemoryRecords as AiokafkaRecords

    return {OURS: own("numba"), PLAIN: own("plain"), AIOKAFKA: peer(AiokafkaRecords)}


def run(rounds: int = 7) -> list[Row]:
    return [*_run_v2(rounds), *_run_small_batches(rounds), *_run_messages(rounds), *_run_07(rounds)]


def _run_messages(rounds: int) -> list[Row]:
    rows: list[Row] = []
    for magic, value_bytes, codec, goal in (
        (0, 100, Codec.NONE, 10.0),
        (1, 100, Codec.NONE, 10.0),
        (1, 1000, Codec.NONE, None),
        (1, 100, Codec.SNAPPY, None),
    ):
        measured = _measured(contestants(), answers_of_messages(value_bytes, magic, codec), rounds)
        what = f"decode v{magic} to Arrow, {value_bytes} B values" + (", snappy" if codec else "")
        rows += [
            compare(f"{what}, {OURS}", measured[OURS], measured[against], UNIT, wanted)
            for against, wanted in ((AIOKAFKA, goal), (PLAIN, None))
        ]
    return rows


def _run_07(rounds: int) -> list[Row]:
    rows: list[Row] = []
    for value_bytes, codec, goals in (
        (100, Codec.NONE, (5.0, 1 / 3)),
        (1000, Codec.NONE, (None, None)),
        (100, Codec.SNAPPY, (None, None)),
    ):
        data, v2 = answers_07(value_bytes, codec), answers(value_bytes)
        decoders = {
            OURS: (own("numba", KAFKA_07), data),
            PLAIN: (own("plain", KAFKA_07), data),
            "own v2, numba": (own("numba"), v2),
        }
        counts = {name: _all(*contestant).num_rows for name, contestant in decoders.items()}
        if not _all(*decoders[OURS]).equals(_all(*decoders[PLAIN])):
            raise RuntimeError("the engines decode 0.7's messages to different rows")
        measured = in_stride({name: partial(_each, *each) for name, each in decoders.items()}, rounds)
        for name, count in counts.items():
            measured[name].amount *= count
        what = f"decode 0.7 to Arrow, {value_bytes} B values" + (", snappy" if codec else "")
        for against, goal in zip((PLAIN, "own v2, numba"), goals, strict=True):
            note = "v2 not compressed" if codec and against != PLAIN else ""
            rows.append(compare(f"{what}, {OURS}", measured[OURS], measured[against], UNIT, goal, note))
    return rows


def _run_v2(rounds: int) -> list[Row]:
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

    rows: list[Row] = []
    for value_bytes, goals in ((100, (10.0, 80.0, 2.0)), (1000, (None, None, None))):
        decoders = {**contestants(), "kafka-python": peer(KafkaPythonRecords)}
        measured = _measured(decoders, answers(value_bytes), rounds)
        pairs = ((OURS, AIOKAFKA), (OURS, "kafka-python"), (PLAIN, "kafka-python"))
        for (ours, against), goal in zip(pairs, goals, strict=True):
            question = f"decode v2 to Arrow, {value_bytes} B values, {ours}"
            rows.append(compare(question, measured[ours], measured[against], UNIT, goal))
    return rows


def _run_small_batches(rounds: int) -> list[Row]:
    """Of 100 B values, by how many records a batch has: what a producer that waits for none sends has one."""
    rows: list[Row] = []
    for codec in (Codec.NONE, Codec.LZ4):
        for count in (1, 10, 100):
            measured = _measured(contestants(), answers(100, count, codec), rounds)
            how = ", lz4" if codec else ""
            question = f"decode v2 to Arrow, 100 B values, batches of {count}{how}, {OURS}"
            goal = None if codec else 10.0
            rows.append(compare(question, measured[OURS], measured[AIOKAFKA], UNIT, goal))
    return rows


def _measured(
    decoders: Mapping[str, Decoder], data: list[tuple[int, bytes]], rounds: int
) -> dict[str, Measurement]:
    """All decoders over the same answers, records being what is counted.

    Raises:
        RuntimeError: they give different rows.
    """
    tables = {name: _all(decode, data) for name, decode in decoders.items()}
    first, expected = next(iter(tables.items()))
    for name, found in tables.items():
        if not found.equals(expected):
            raise RuntimeError(f"{name} decodes other rows than {first}")
    count = expected.num_rows
    del tables, expected, found
    calls = {name: partial(_each, decode, data) for name, decode in decoders.items()}
    return in_stride(calls, rounds, count)


def _all(decode: Decoder, data: list[tuple[int, bytes]]) -> pa.Table:
    batches = [batch for start, answer in data for batch in decode(start, answer)]
    return pa.Table.from_batches(batches).combine_chunks()


def _each(decode: Decoder, data: list[tuple[int, bytes]]) -> None:
    for start, answer in data:
        decode(start, answer)
