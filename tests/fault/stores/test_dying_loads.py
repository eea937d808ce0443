"""A load into files whose process dies at any call to the file system: the next one ends it.

It is what the drivers of Spark in tests/fault/loads are killed for, at every point and not at some of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.loads.output_files import files_in_effect
from pyspark_kafkalog.loads.verification import verify_outputs
from tests.support.ledger.dying_loads import ROWS, ledger_of, load, table_of

ROOT = Path(__file__).parents[3]
_IN_MEMORY = Path("/dev/shm")


def rows_of(root: Path) -> list[int]:
    """What a reader sees of the table."""
    files = files_in_effect(ledger_of(root), table_of(root))
    return sorted(n for file in files for n in pq.read_table(table_of(root) / file)["n"].to_pylist())


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is a place for that: a killed process takes nothing that it wrote with it."""
    if not _IN_MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY) as name:
        yield Path(name)


def test_wherever_a_load_dies_the_next_one_ends_it_and_every_row_is_there_once(directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.ledger.dying_loads", str(directory)],
        cwd=ROOT, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    deaths = int(done.stdout)
    assert deaths > 30
    left = {"nothing": 0, "plan": 0, "commit": 0}
    for number in range(deaths + 1):
        root = directory / str(number)
        ledger = ledger_of(root)
        begun = ledger.pending()
        committed = ledger.head() is not None
        left["commit" if committed else "nothing" if begun is None else "plan"] += 1
        if committed:
            assert rows_of(root) == ROWS
        else:
            with pytest.raises(LoadError):
                rows_of(root)
        commit = load(root, "next")
        assert (commit is None) == committed
        if begun is not None:
            assert ledger.plan(1) == begun
        assert [c.number for c in ledger.history()] == [1]
        assert ledger.pending() is None
        assert ledger.verify() == []
        assert rows_of(root) == ROWS
        assert verify_outputs(ledger.lineage()) == []
    assert min(left.values()) > 1, left
