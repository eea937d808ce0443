"""Look-ups by time: the batch in question is opened once, and what is kept of it is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog_broker.log import walk
from kafkalog_broker.log.offset_scheme import BatchTimes, Rises, rises_of
from pyspark_kafkalog.formats.compression import Codec
from tests.support.log.logs import START_MS, batch, crash_all, open_log


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> object:
    yield
    crash_all()


def rises(*records: tuple[int, int]) -> Rises:
    return rises_of(iter(records))


def test_what_was_asked_for_longest_ago_makes_room() -> None:
    kept = BatchTimes(max_rows=12)
    for name in "abc":
        kept.keep(name, rises((1, 1), (2, 2), (3, 3)))
    assert kept.get("a") is not None
    kept.keep("d", rises((1, 1)))
    assert [name for name in "abcd" if kept.get(name) is not None] == ["a", "c", "d"]
    kept.keep("large", rises(*((n, n) for n in range(12))))
    assert kept.get("large") is None
    assert kept.get("a") is not None


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_is_opened_once_however_many_times_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    log = open_log(tmp_path)[1]
    times = [START_MS + 7 * number % 1000 for number in range(2000)]
    log.append(batch(*[b"x"] * 2000, timestamps=times, codec=codec))
    opened = []
    read_frame = walk.read_frame
    monkeypatch.setattr(walk, "read_frame", lambda *args: opened.append(args) or read_frame(*args))
    for timestamp in range(START_MS, START_MS + 999, 3):
        want = next((time, offset) for offset, time in enumerate(times) if time >= timestamp)
        assert log.offset_for_timestamp(timestamp) == want
    assert log.max_timestamp() == (max(times), times.index(max(times)))
    assert len(opened) == 1
