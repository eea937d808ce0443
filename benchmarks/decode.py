"""How fast are fetched bytes made into Arrow, against the decoders of other clients?

The same v2 batches go to our decoder with either engine, to aiokafka's decoder in C and to kafka-python's
in Python; the peers' records are gathered in lists and made into the same seven columns. Four answers of 1
MiB each, 64 KiB batches, 10-byte keys. Before anything is timed, all must give the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.harness import Row, compare, interleave, repeats, table
from pyspark_kafkalog.columnar.record_batches import RecordBatchDecoder
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.types import NewRecord

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
TOPIC, PARTITION = "measured", 0
BATCH_BYTES = 64 << 10
ANSWER_BYTES = 1 << 20
ANSWERS = 4
RECORD_OVERHEAD = 20
"""Bytes of a record beside its value: a key of 10, lengths and deltas."""
END = (1 << 63) - 1


def answers(value_bytes: int) -> list[tuple[int, bytes]]:
    """Fetch answers with their first offsets: values of ``value_bytes``, timestamps and keys that differ."""
    made: list[tuple[int, bytes]] = []
    offset = 0
    value = bytes(i % 251 for i in range(value_bytes))
    for _ in range(ANSWERS):
        first, parts, size = offset, [], 0
        while size < ANSWER_BYTES - BATCH_BYTES // 2:
            rows = [
                NewRecord(value, b"key-%06d" % (n % 1_000_000), 1_700_000_000_000 + n)
                for n in range(offset, offset + BATCH_BYTES // (value_bytes + RECORD_OVERHEAD))
            ]
            batch = encode_batch(rows, base_offset=offset, leader_epoch=0)
            offset += len(rows)
            parts.append(batch)
            size += len(batch)
        made.append((first, b"".join(parts)))
    return made


def own(engine: str) -> Callable[[int, bytes], list[pa.RecordBatch]]:
    """Our decoder with this engine."""
    decoder = RecordBatchDecoder(topic=TOPIC, partition=PARTITION, columns=COLUMNS, engine=engine)  # type: ignore[arg-type]
    return lambda start, data: decoder.decode(memoryview(data), start, END).batches


def peer(memory_records: Callable[[bytes], Any]) -> Callable[[int, bytes], list[pa.RecordBatch]]:
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
                times.append(record.timestamp * 1000)
                kinds.append(record.timestamp_type)
        count = len(offsets)
        columns = [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.repeat(pa.scalar(TOPIC), count),
            pa.repeat(pa.scalar(PARTITION, pa.int32()), count),
            pa.array(offsets, pa.int64()),
            pa.array(times, pa.timestamp("us", "UTC")),
            pa.array(kinds, pa.int32()),
        ]
        return [pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))]

    return decode


def _batches(records: Any) -> Iterable[Any]:
    while (batch := records.next_batch()) is not None:
        yield batch


def contestants() -> dict[str, Callable[[int, bytes], list[pa.RecordBatch]]]:
    """All decoders by name."""
    from aiokafka.record._crecords import MemoryRecords as AiokafkaRecords
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

    return {
        "own, numba": own("numba"),
        "own, plain": own("plain"),
        "aiokafka (C)": peer(AiokafkaRecords),
        "kafka-python": peer(KafkaPythonRecords),
    }


def run(rounds: int = 7) -> list[Row]:
    """The rows of this question: values of 100 and of 1000 bytes."""
    rows: list[Row] = []
    for value_bytes, goals in ((100, (10.0, 80.0, 2.0)), (1000, (None, None, None))):
        data = answers(value_bytes)
        decoders = contestants()
        tables = {name: _all(decode, data) for name, decode in decoders.items()}
        for name, found in tables.items():
            if not found.equals(tables["kafka-python"]):
                raise RuntimeError(f"{name} decodes other rows than kafka-python")
        count = tables["kafka-python"].num_rows
        del tables
        calls = {name: partial(_each, decode, data) for name, decode in decoders.items()}
        times = {name: repeats(call) for name, call in calls.items()}
        measured = interleave(
            {name: partial(_repeat, call, times[name]) for name, call in calls.items()},
            rounds,
            amounts={name: float(count * times[name]) for name in calls},
        )
        for ours, against, goal in zip(
            ("own, numba", "own, numba", "own, plain"),
            ("aiokafka (C)", "kafka-python", "kafka-python"),
            goals,
            strict=True,
        ):
            rows.append(
                compare(
                    f"decode v2 to Arrow, {value_bytes} B values, {ours}",
                    measured[ours],
                    measured[against],
                    goal=goal,
                    unit="Mrecords/s",
                    scale=1e-6,
                )
            )
    return rows


def _all(decode: Callable[[int, bytes], list[pa.RecordBatch]], data: list[tuple[int, bytes]]) -> pa.Table:
    batches = [batch for start, answer in data for batch in decode(start, answer)]
    return pa.Table.from_batches(batches).combine_chunks()


def _each(decode: Callable[[int, bytes], list[pa.RecordBatch]], data: list[tuple[int, bytes]]) -> None:
    for start, answer in data:
        decode(start, answer)


def _repeat(call: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()


if __name__ == "__main__":
    print(table(run()))
