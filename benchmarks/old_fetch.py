"""What does it cost a broker to answer clients of Kafka 0.8 to 0.10?

What they know is to go out like everything else, from the file: here against batches v2 for today's clients,
from the same broker. After a restart the first pass, which is not timed, looks through the segments. What is
newer than they know is made into their format in Python, whenever it is fetched: here without a broker,
against writing a set of the same messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.broker import apart, scratch
from benchmarks.harness import Row, compare, in_stride, in_turn
from benchmarks.raw_client import RawClient, encode, fetch_request, produce_request
from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.convert import for_reader
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.formats.message_set import next_offset_after
from pyspark_kafkalog.types import NewRecord

TOPIC_BYTES = 64 << 20
ROUND_BYTES = 256 << 20
FETCH_BYTES = 1 << 20
_MAX_BYTES = 1 << 25
_VALUE = bytes(100)


def run(rounds: int = 7) -> list[Row]:
    """All rows of this question; about half a minute."""
    with scratch() as directory, start_broker(data_dir=directory) as broker:
        rows = _fetch_rows(broker, rounds)
    return [
        *rows,
        *(_convert_row(rounds, magic, Codec.NONE) for magic in (1, 0)),
        *(_convert_row(rounds, magic, Codec.GZIP) for magic in (1, 0)),
    ]


def _fetch_rows(broker: EmbeddedBroker, rounds: int) -> list[Row]:
    rows = []
    with RawClient(broker.port) as client:
        for magic in (0, 1, 2):
            _fill(client, magic)
    for restarted in (False, True):
        if restarted:
            broker.restart()
        with RawClient(broker.port) as client, apart(broker.pid):
            for magic, version in ((0, 1), (1, 3)):
                old, new = _fetches(client, f"v{magic}", version), _fetches(client, "v2", 12)
                measured = in_turn({f"v{magic}": old, "v2, Fetch 12": new}, rounds, ROUND_BYTES)
                when = ", after a restart" if restarted else ""
                question = f"Fetch {version} of messages v{magic} of 100 B, 1 MiB{when}"
                rows.append(compare(question, *measured.values(), "MB/s", 0.9))
    return rows


def _fill(client: RawClient, magic: int) -> None:
    """A topic of so many messages, uncompressed, in requests of 64 KiB."""
    now = time.time_ns() // 1_000_000
    new = [NewRecord(_VALUE, None, now)] * 500
    data = encode_batch(new) if magic == 2 else encode_set(new, magic=magic)
    client.create_topic(f"v{magic}", message_format_version="producer")
    frame = encode(produce_request(f"v{magic}", bytes(data)), 11 if magic == 2 else 2)
    for _ in range(TOPIC_BYTES // len(data)):
        client.answer_bytes(frame)


def _fetches(client: RawClient, topic: str, version: int) -> Callable[[], float]:
    """Fetches that follow each other as a consumer's do, from one answer's end to the next."""
    requests, offset = [], 0
    while True:
        request = fetch_request(topic, offset, FETCH_BYTES)
        data = client.call(request, version).responses[0].partitions[0].records
        if len(data) < FETCH_BYTES // 2:
            break
        requests.append(request)
        offset = next_offset_after(data, offset)

    def seconds() -> float:
        took, received = client.fetch(requests * (ROUND_BYTES // TOPIC_BYTES), version=version)
        return took * ROUND_BYTES / received  # a fetch is a little below 1 MiB: whole entries

    return seconds


def _convert_row(rounds: int, magic: int, codec: Codec) -> Row:
    new = [NewRecord(b"message %d of a batch, " % n * 4, b"%d" % n, n) for n in range(500)]
    data = bytes(encode_batch(new, codec=codec))
    calls: dict[str, Callable[[], object]] = {
        f"v2 as v{magic}": lambda: list(for_reader(data, magic, max_bytes=_MAX_BYTES)),
        "encode_set of the same": lambda: encode_set(new, magic=magic, codec=codec),
    }
    measured = in_stride(calls, rounds, len(new))
    question = f"batch v2 of 500 messages of 100 B, {codec.name.lower()}, as v{magic}"
    return compare(question, *measured.values(), "k messages/s")
