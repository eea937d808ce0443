"""Line B18: transactions as a reader sees them, with bytes that a transactional producer left in a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafkalog.formats.batch import ControlType, encode_control
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.formats.vectors import vector

# Offsets 0-2 of producer 4000, its abort at 3, 4-5 of 4001, 6-7 of neither, the commit of 4001 at 8.
LOG = vector("v2-txn-log.bin").data
ABORTED = [(4000, 0)]


def marker(kind: ControlType, offset: int) -> bytes:
    return encode_control(kind, producer_id=4000, producer_epoch=1, timestamp=1000, base_offset=offset)


def offsets_read(spark: Any, log: ScriptedLog, level: str, **options: str) -> list[int]:
    with serving(log) as broker:
        frame = (
            spark.read.format("kafkalog")
            .option("kafka.bootstrap.servers", broker.address)
            .option("subscribe", "t")
            .option("kafka.isolation.level", level)
            .options(**options)
            .load()
        )
        return sorted(row.offset for row in frame.select("offset").collect())


@pytest.mark.parametrize(
    ("level", "expected"), [("read_committed", [4, 5, 6, 7]), ("read_uncommitted", [0, 1, 2, 4, 5, 6, 7])]
)
@pytest.mark.parametrize("options", [{}, {"minPartitions": "4"}], ids=["one task", "four tasks"])
def test_b18_an_abort_in_the_middle(
    spark: Any, level: str, expected: list[int], options: dict[str, str]
) -> None:
    log = ScriptedLog(LOG, aborted=ABORTED, at_once=True)
    assert offsets_read(spark, log, level, **options) == expected


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(lambda: marker(ControlType.COMMIT, 0) + batches(range(1, 4)), [1, 2, 3], id="first"),
        pytest.param(lambda: batches(range(3)) + marker(ControlType.ABORT, 3), [0, 1, 2], id="last"),
        pytest.param(
            lambda: marker(ControlType.COMMIT, 0) + marker(ControlType.ABORT, 1), [], id="nothing else"
        ),
    ],
)
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_b18_markers_are_not_rows_wherever_they_are(
    spark: Any, level: str, make: Callable[[], bytes], expected: list[int]
) -> None:
    assert offsets_read(spark, ScriptedLog(make()), level) == expected
