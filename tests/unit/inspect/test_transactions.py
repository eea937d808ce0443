"""What tools make of transactions: verify-log of the files of aborted ones, dump-log, and the export."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from kafkalog_broker.cli.broker_app import main
from kafkalog_broker.disk.filesystem import FileSystem, ReadOnlyFiles
from kafkalog_broker.inspect.export import Source, export
from kafkalog_broker.inspect.inspection import PartitionPlace
from kafkalog_broker.log.aborted_transactions import AbortedTransaction, parse_aborted
from tests.support.log.data_directories import checked, damages
from tests.support.log.logs import PARTITION, batch, open_log

ROWS = [
    AbortedTransaction(1, 0, 2, 1),
    AbortedTransaction(1, 4, 6, 5),
    AbortedTransaction(2, 5, 7, 8),
    AbortedTransaction(1, 8, 10, 9),
    AbortedTransaction(1, 12, 14, 13),
    AbortedTransaction(2, 13, 15, 16),
]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Small segments, with transactions that begin in one and end in another."""
    manager, log = open_log(tmp_path / "data", segment_bytes=320)
    for number in range(4):
        for producer in (1, 2):
            data = batch(
                b"x", transactional=True, producer_id=producer, producer_epoch=0, base_sequence=number
            )
            log.append(data)
        log.end_transaction(1, 0, commit=False)
        log.end_transaction(2, 0, commit=number % 2 == 0)
    log.append(batch(b"last"))
    manager.close()
    return log.path


def rows_in(directory: Path) -> list[AbortedTransaction]:
    paths = sorted(directory.glob("*.txnindex"))
    return [row for path in paths for row in parse_aborted(path.read_bytes(), path)]


def test_a_sound_log_has_its_rows(partition: Path) -> None:
    assert rows_in(partition) == ROWS
    assert len(list(partition.glob("*.txnindex"))) > 2
    assert damages(checked(partition)) == []


def test_a_lost_row_a_lost_file_and_a_cut_one_are_damage(partition: Path) -> None:
    path = next(path for path in sorted(partition.glob("*.txnindex")) if path.stat().st_size > 34)
    whole = path.read_bytes()
    for content, words in ((whole[34:], "1 aborted"), (whole[:-1], "not whole rows"), (None, "2 aborted")):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        ((name, _, what),) = damages(checked(partition))
        assert name == path.name
        assert words in what
        assert "producers.snapshot" in what


def test_dump_log_shows_the_rows(partition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sorted(partition.glob("*.txnindex"))[0]
    assert main(["dump-log", str(path)]) == 0
    assert "producerId: 1 firstOffset: 0 lastOffset: 2 lastStableOffset: 1" in capsys.readouterr().out


def test_an_export_has_the_rows_too(partition: Path, tmp_path: Path) -> None:
    source = Source(PartitionPlace(partition, PARTITION), uuid4(), False, None)
    export([source], tmp_path / "out", reading=ReadOnlyFiles(), writing=FileSystem())
    (directory,) = (tmp_path / "out").iterdir()
    assert rows_in(directory) == ROWS
