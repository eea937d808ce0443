"""What a ledger writes as text, a read can start from; whatever else is there is told."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.datasource.reading.start_positions import read_offset_files
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.archive import mirror_line
from pyspark_kafkalog.ledger.plan import Position
from pyspark_kafkalog.types import TopicPartition

_topics = st.text("abcXYZ019._-", min_size=1, max_size=12)
_partitions = st.builds(lambda *where: TopicPartition(*where), _topics, st.integers(0, 2**31 - 1))
_brokers = {"host:9092": 7, "other-host:9092": 0}
_partitions_07 = st.builds(TopicPartition, _topics, st.integers(0, 2**31 - 1), st.sampled_from([7, 0]))
_offsets = st.dictionaries(_partitions, st.integers(0, 2**63 - 1), min_size=1, max_size=6)


@given(_offsets, st.sampled_from(["host:9092", "[::1]:9092", ""]))
def test_the_lines_of_a_ledger_are_read_as_they_were_written(
    offsets: dict[TopicPartition, int], address: str
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for number, (where, offset) in enumerate(offsets.items()):
            position = Position(where.topic, where.partition, "", offset, 0, address)
            (Path(directory) / f"part-{number}").write_bytes(mirror_line(position))
        assert read_offset_files(directory) == offsets


@given(st.dictionaries(_partitions_07, st.integers(0, 2**63 - 1), min_size=1, max_size=6))
def test_the_lines_of_a_ledger_of_07_are_read_as_they_were_written(
    offsets: dict[TopicPartition, int],
) -> None:
    address = {broker: where for where, broker in _brokers.items()}
    with tempfile.TemporaryDirectory() as directory:
        for number, (where, offset) in enumerate(offsets.items()):
            of = where.broker
            position = Position(where.topic, where.partition, "", offset, of, address[of], broker=of)
            (Path(directory) / f"part-{number}").write_bytes(mirror_line(position))
        assert read_offset_files(directory, _brokers) == offsets


@given(
    st.binary(max_size=60) | st.lists(st.sampled_from("t0-1\t\n 5"), max_size=30).map("".join).map(str.encode)
)
def test_any_file_is_read_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "part-0").write_bytes(data)
        with contextlib.suppress(InvalidConfig):
            assert all(offset >= -2 for offset in read_offset_files(directory).values())
