"""Files that were changed after their commit are found by reading them, whatever size and footer say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.cli.app import app
from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.loads.load import Load
from pyspark_kafkalog.loads.verification import read_outputs, verify_outputs
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.local_lake import FileLake
from tests.support.protocol.raw_client import RawClient

pytestmark = pytest.mark.usefixtures("tasks_here")


class Lake(FileLake):
    """Files of one load, one for each partition."""

    def write(self, load: Load, **how: Any) -> None:
        super().write(load, compression="none", **how)

    def findings(self, commit: Commit) -> list[str]:
        return read_outputs(self.ledger, [commit], lambda _: None)

    def said(self, *more: str) -> str:
        """What the command prints."""
        return CliRunner().invoke(app, ["verify", "events", "--offsets", str(self.offsets), *more]).stdout


@pytest.fixture
def lake(running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path) -> Lake:
    return Lake(running_broker.bootstrap_servers, Topic(client, topic), tmp_path)


def test_a_flipped_bit_anywhere_is_found_by_reading(lake: Lake) -> None:
    commit = lake.run().commit
    assert commit is not None
    (output,) = commit.outputs
    path = lake.table / output.directory / output.files[0].name
    data = bytearray(path.read_bytes())
    assert lake.findings(commit) == []
    assert lake.said("--deep").startswith("sound: 1 commit in effect with 15 records, 2 files")
    data[10] ^= 1
    path.write_bytes(data)
    assert verify_outputs([commit]) == []
    (finding,) = lake.findings(commit)
    assert finding.startswith(f"load 1: {path} has other bytes than were committed: their CRC-32C is ")
    assert lake.said("--deep") == f"{finding}\n"
    path.write_bytes(data[:-1])
    assert "bytes and had" in lake.findings(commit)[0]
    path.unlink()
    assert lake.findings(commit) == [f"load 1: {path} is missing; it had {output.files[0].rows} rows"]


def rewritten(
    lake: Lake, commit: Commit, notes: Callable[[dict[bytes, bytes]], dict[bytes, bytes]]
) -> Commit:
    """The commit as if its first file had been written with other notes, and without a checksum."""
    (output,) = commit.outputs
    path = lake.table / output.directory / output.files[0].name
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.replace_schema_metadata(notes(dict(pq.read_metadata(path).metadata))), path)
    first = replace(output.files[0], bytes=path.stat().st_size, crc32c=None)
    return replace(commit, outputs=(replace(output, files=(first, *output.files[1:])),))


def test_a_footer_is_compared_with_the_commit_and_the_receipts(lake: Lake) -> None:
    commit = lake.run().commit
    assert commit is not None
    assert lake.findings(rewritten(lake, commit, lambda notes: notes)) == []
    (finding,) = lake.findings(rewritten(lake, commit, lambda notes: notes | {b"kafkalog.number": b"2"}))
    assert finding.endswith(" says kafkalog.number = 2, and its commit 1")
    wrong = {b"kafkalog.number": b"1", b"kafkalog.last_offset": b"99"}
    (finding,) = lake.findings(rewritten(lake, commit, lambda notes: notes | wrong))
    assert finding.endswith(f" has offsets 0 to 99 of {lake.topic.name}-0, and its receipts 0 to 9")
    other = wrong | {b"kafkalog.partition": b"other-7"}
    (finding,) = lake.findings(rewritten(lake, commit, lambda notes: notes | other))
    assert finding.endswith(" has offsets 0 to 99 of other-7, and its receipts none of it")
    without = rewritten(lake, commit, lambda _: {})
    assert lake.findings(without) == []
    (output,) = without.outputs
    fewer = replace(output.files[0], rows=9)
    (finding, _) = lake.findings(replace(without, outputs=(replace(output, files=(fewer,)),)))[::-1]
    assert finding.endswith(" has 10 rows and had 9 when it was committed")
