"""A bit flipped in a segment where no checksum looks: batch reads, loads and commands fail, and say where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.datasource.batch.batch_reader import BatchReader
from pyspark_kafkalog.datasource.batch.load_reader import LoadReader
from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.ledger.ledger import Ledger
from tests.support.command_line import kafkalog
from tests.support.protocol.raw_client import RawClient, batch

pytestmark = pytest.mark.long("every kind of damage in every format")

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


@pytest.mark.parametrize("bit", [41, 4])
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
    assert consumed.stderr.endswith("To skip corrupt data: --on-corrupt-batch skip\n")
    assert consumed.stderr.count("\n") == 1


def test_the_batch_may_be_left_out_and_is_named(
    running_broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    flip(running_broker, topic, 41)
    given = {"loadName": "load", "offsetsPath": str(tmp_path), "commitOffsets": "stage"}
    loading = options_of(running_broker, topic, onCorruptBatch="skip", **given)
    load = LoadReader(loading, ("offset",), loading.load)
    (planned,) = load.partitions()
    found = [offset for rows in load.read(planned) for offset in rows["offset"].to_pylist()]
    assert found == [*range(50), *range(60, BATCHES * EACH)]
    commit = Ledger.at(tmp_path, "load").head()
    assert commit is not None
    assert (commit.records, commit.skipped, commit.missing) == (290, 10, 0)
    history = kafkalog("history", "load", "--offsets", str(tmp_path))
    assert "skipped" in history.stdout
    assert "skipped" in kafkalog("history", "load", "--offsets", str(tmp_path), "--partitions").stdout
    verified = kafkalog("verify", "load", "--offsets", str(tmp_path))
    assert verified.returncode == 0
    assert verified.stderr.startswith("10 offsets were left out as corrupt")

    consumed = kafkalog(
        "consume", topic, "--on-corrupt-batch", "skip", server=running_broker.bootstrap_servers
    )
    assert consumed.returncode == 0
    assert consumed.stdout.split() == [f"{n:05d}" for n in found]
    assert f"{topic}-0: skipped corrupt offsets [50, 60)\n" in consumed.stderr
    assert f"{topic}: skipped 10 corrupt offsets\n" in consumed.stderr
