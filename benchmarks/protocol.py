"""How long do the messages of the hot path take to read and write, against the codecs of other libraries?

Bodies only, without header and size; the newest version that we speak; record sets of 100 bytes. kafka-python
compiles its codecs to Python, kio reads in Rust and writes in Python; both copy record sets. Before anything
is timed, each codec must read what ours wrote, and write the same. Then the hand-written writers of single
partitions are set beside the tables' own, and the short way of a whole produce request, answer included. The
last rows are of a broker that checks the records of a compressed batch, in thousand records a second, beside
a client's reading them.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.harness import Row, compare, in_stride
from pyspark_kafkalog.formats.record import check_records, encode_record, parse_records
from pyspark_kafkalog.protocol import exchange
from pyspark_kafkalog.protocol.api import fetch, metadata, produce
from pyspark_kafkalog.protocol.codec import codec, table_codec
from pyspark_kafkalog.protocol.primitives import Output
from pyspark_kafkalog.types import NewRecord

RECORDS = bytes(100)
BATCH = 500


def messages(partitions: int) -> list[Any]:
    """One message of each kind, with so many partitions of one topic."""
    numbers = range(partitions)
    to_append = tuple(produce.PartitionProduceData(i, RECORDS) for i in numbers)
    appended = tuple(produce.PartitionProduceResponse(i, base_offset=i) for i in numbers)
    to_fetch = tuple(fetch.FetchPartition(i, fetch_offset=77, partition_max_bytes=1 << 20) for i in numbers)
    fetched = tuple(fetch.PartitionData(i, high_watermark=99, records=RECORDS) for i in numbers)
    known = tuple(metadata.MetadataResponsePartition(partition_index=i, replica_nodes=(0,)) for i in numbers)
    return [
        produce.ProduceRequest(acks=-1, topic_data=(produce.TopicProduceData("flights", to_append),)),
        produce.ProduceResponse((produce.TopicProduceResponse("flights", appended),)),
        fetch.FetchRequest(topics=(fetch.FetchTopic(topic="flights", partitions=to_fetch),)),
        fetch.FetchResponse(responses=(fetch.FetchableTopicResponse(topic="flights", partitions=fetched),)),
        metadata.MetadataResponse(topics=(metadata.MetadataResponseTopic(name="flights", partitions=known),)),
    ]


def body(message: Any) -> bytes:
    api = exchange.api_of(type(message))
    version = api.versions.max
    out = Output()
    cls: Any = type(message)
    codec(cls, version, api.flexible(version)).write(out, message)
    data = bytes(out)
    for position, region in reversed(out.regions):
        data = data[:position] + bytes(region) + data[position:]
    return data


def calls(message: Any) -> dict[str, Callable[[], object]]:
    """Reading and writing ``message``, by us and by the others; names are ``who what``."""
    api, data = exchange.api_of(type(message)), body(message)
    version, name = api.versions.max, type(message).__name__
    flexible = api.flexible(version)
    cls: Any = type(message)
    ours = codec(cls, version, flexible)
    kafka_python = getattr(import_module(f"kafka.protocol.{_PACKAGES[name]}"), name)
    theirs = kafka_python.decode(data, version=version)
    theirs._header = None  # its decoder leaves this out, its encoder asks for it
    from kio.serial import entity_reader, entity_writer

    kio = getattr(import_module(f"kio.schema.{api.key.name.lower()}.v{version}"), name)
    kio_reader, kio_writer = entity_reader(kio), entity_writer(kio)
    kio_message, _ = kio_reader(data, 0)
    written = io.BytesIO()
    kio_writer(written, kio_message)
    if not (written.getvalue() == data == bytes(theirs.encode(version=version))):
        raise RuntimeError(f"{name} is not the same to all")
    return {
        "own reading": lambda: ours.read(memoryview(data), 0),
        "own writing": lambda: ours.write(Output(), message),
        "kafka-python reading": lambda: kafka_python.decode(data, version=version),
        "kafka-python writing": lambda: theirs.encode(version=version),
        "kio reading": lambda: kio_reader(data, 0),
        "kio writing": lambda: kio_writer(io.BytesIO(), kio_message),
    }


_PACKAGES = {
    "ProduceRequest": "producer",
    "ProduceResponse": "producer",
    "FetchRequest": "consumer",
    "FetchResponse": "consumer",
    "MetadataResponse": "metadata",
}


def tuned_calls(value: Any, version: int) -> dict[str, Callable[[], object]]:
    """Writing a struct with the hand-written writer and with the table's."""
    cls: Any = type(value)
    table_of, tuned = table_codec(cls, version, True), codec(cls, version, True)
    return {
        "own writing": lambda: tuned.write(Output(), value),
        "table writing": lambda: table_of.write(Output(), value),
    }


def single_calls(version: int = 11) -> dict[str, Callable[[], object]]:
    """A produce request with one partition read and answered, the short way and by the tables."""
    request = messages(1)[0]
    parts: list[Any] = exchange.encode_request(
        request, version=version, correlation_id=1, client_id="benchmark"
    )
    frame = bytearray(b"".join(bytes(part) for part in parts)[4:])
    header, pos = exchange.decode_header(frame)

    def single() -> list[Any]:
        read = produce.read_single(frame, pos, version)
        if read is None:
            raise RuntimeError("the short way does not take the usual request")
        return [
            produce.write_single(read, version, 1, base_offset=9, log_append_time_ms=-1, log_start_offset=0)
        ]

    def tables() -> list[Any]:
        (topic,) = exchange.decode_request(header, frame, pos).topic_data
        answer = produce.PartitionProduceResponse(
            topic.partition_data[0].index, base_offset=9, log_append_time_ms=-1, log_start_offset=0
        )
        response = produce.ProduceResponse((produce.TopicProduceResponse(topic.name, (answer,)),))
        return exchange.encode_response(response, version=version, correlation_id=1)

    if b"".join(single()) != b"".join(tables()):
        raise RuntimeError("the short way does not say what the tables say")
    return {"own serving": single, "table serving": tables}


def record_calls(sizes: range) -> dict[str, Callable[[], object]]:
    """Checking and reading the records of a decompressed batch, with values of these sizes."""
    chosen = random.Random("sizes")
    values = (NewRecord(bytes(chosen.choice(sizes)), timestamp=0) for _ in range(BATCH))
    block = b"".join(encode_record(value, 0, number) for number, value in enumerate(values))
    end = len(block)
    return {
        "own checking": lambda: check_records(block, 0, end, BATCH, BATCH, BATCH, numbered=True, keyed=False),
        "client's checking": lambda: parse_records(
            block, BATCH, base_offset=0, last_offset_delta=BATCH - 1, base_timestamp=0
        ),
    }


def run(rounds: int = 7) -> list[Row]:
    """The rows of this question, in thousand messages a second."""
    rows: list[Row] = []
    for partitions in (1, 100):
        for message in messages(partitions):
            name = f"{type(message).__name__}, partitions: {partitions}"
            rows += _rows(name, calls(message), ("kafka-python", "kio"), rounds)
    to_append, fetched = produce.PartitionProduceData(1, RECORDS), fetch.PartitionData(1, records=RECORDS)
    for value, version in ((to_append, 11), (fetched, 12)):
        rows += _rows(
            f"one {type(value).__name__}", tuned_calls(value, version), ("table",), rounds, ("writing",)
        )
    rows += _rows("one ProduceRequest", single_calls(), ("table",), rounds, ("serving",))
    for name, sizes in {"100 B": range(100, 101), "50 to 149 B": range(50, 150)}.items():
        measured = in_stride(record_calls(sizes), rounds, BATCH, seconds=0.02)
        question = f"checking records of a batch, {name}"
        rows.append(compare(question, measured["own checking"], measured["client's checking"], "thousand/s"))
    return rows


def _rows(
    name: str,
    contestants: dict[str, Callable[[], object]],
    peers: tuple[str, ...],
    rounds: int,
    actions: tuple[str, ...] = ("reading", "writing"),
) -> list[Row]:
    measured = in_stride(contestants, rounds, seconds=0.02)
    return [
        compare(f"{what} {name}", measured[f"own {what}"], measured[f"{peer} {what}"], "thousand/s")
        for what in actions
        for peer in peers
    ]
