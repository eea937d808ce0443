"""A bit flipped in a segment where no checksum looks: batch reads, loads and commands fail, and say where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.embedded import EmbeddedBroker
from pyspark_kafkalog.datasource.batch_reader import BatchReader
from pyspark_kafkalog.datasource.load_reader import LoadReader
from pyspark_kafkalog.datasource.options import parse_batch_options
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.loads.ledger import Ledger
from tests.support.command_line import kafkalog
from tests.support.raw_client import RawClient, batch

EACH, BATCHES, DAMAGED = 10, 30, 5
BATCH_BYTES = len(batch(*[b"%05d" % 0] * EACH))


@pytest.fixture
def topic(client: RawClient, topic_name: str, running_broker: EmbeddedBroker) -> str:
    """Three segments of ten batches each."""
    configs = {"segment.bytes": str(10 * BATCH_BYTES)}
    assert client.create_topic(topic_name, configs=configs).error_code == 0
    for number in range(BATCHES):
        client.produce(topic_name, batch(*[b"%05d" % (number * EACH + i) for i in range(EACH)]))
    assert len(segments(running_broker, topic_name)) == 3
    return topic_name


def segments(broker: EmbeddedBroker, topic: str) -> list[Path]:
    return sorted(broker.data_dir.glob(f"{topic}_0/*.kafka"))


def flip(broker: EmbeddedBroker, topic: str, bit: int) -> None:
    """Change one bit of a base offset in the first, closed segment."""
    segment = segments(broker, topic)[0]
    data = bytearray(segment.read_bytes())
    data[DAMAGED * BATCH_BYTES + 7 - bit // 8] ^= 1 << bit % 8
    with segment.open("r+b") as file:
        file.write(data)


def options_of(broker: EmbeddedBroker, topic: str, **given: str) -> Any:
    known = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic}
    return parse_batch_options({**known, **given})


@pytest.mark.parametrize("bit", [41, 16, 63, 4])
def test_a_flipped_bit_of_a_base_offset_ends_no_read_without_a_word(
    running_broker: EmbeddedBroker, topic: str, bit: int, tmp_path: Path
) -> None:
    whole = BatchReader(options_of(running_broker, topic), ("value",))
    (task,) = whole.partitions()
    assert sum(rows.num_rows for rows in whole.read(task)) == BATCHES * EACH
    flip(running_broker, topic, bit)
    with pytest.raises(CorruptMessage, match=f"{topic}-0"):
        sum(rows.num_rows for rows in whole.read(task))

    given = {"loadName": "load", "offsetsPath": str(tmp_path), "commitOffsets": "stage"}
    loading = options_of(running_broker, topic, **given)
    load = LoadReader(loading, ("value",), loading.load)
    (planned,) = load.partitions()
    with pytest.raises(CorruptMessage, match=f"{topic}-0"):
        list(load.read(planned))
    ledger = Ledger.at(tmp_path, "load")
    assert ledger.head() is None
    assert ledger.pending() is not None

    consumed = kafkalog("consume", topic, server=running_broker.bootstrap_servers)
    assert consumed.returncode == 1, consumed.stdout
    assert consumed.stderr.startswith(f"kafkalog: {topic}-0"), consumed.stderr
    assert consumed.stderr.count("\n") == 1
