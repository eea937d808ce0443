"""Look-ups by time: the batch in question is opened once, in steps, and what is kept of it is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog_broker.log import segment as segment_module
from kafkalog_broker.log.batch_times import BatchTimes, Rises, rises_of
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.steps import run_steps, with_jobs_run
from tests.support.log.logs import START_MS, batch, crash_all, open_log


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> object:
    yield
    crash_all()


def rises(*records: tuple[int, int]) -> Rises:
    return run_steps(rises_of(iter(records)))


def test_many_records_are_looked_at_in_many_steps() -> None:
    assert sum(1 for _ in with_jobs_run(rises_of((n, n) for n in range(10_000)))) >= 10_000 // 256


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
    read_frame = segment_module.read_frame
    monkeypatch.setattr(segment_module, "read_frame", lambda *args: opened.append(args) or read_frame(*args))
    for timestamp in range(START_MS, START_MS + 999, 3):
        want = next((time, offset) for offset, time in enumerate(times) if time >= timestamp)
        assert run_steps(log.offset_for_timestamp_in_steps(timestamp)) == want
    assert run_steps(log.max_timestamp_in_steps()) == (max(times), times.index(max(times)))
    assert len(opened) == 1


def test_a_look_up_goes_on_in_steps_while_others_append(tmp_path: Path) -> None:
    log = open_log(tmp_path)[1]
    log.append(batch(*[b"x"] * 5000, timestamps=[START_MS + number for number in range(5000)]))
    each = with_jobs_run(log.offset_for_timestamp_in_steps(START_MS + 4999))
    steps = 0
    while True:
        try:
            next(each)
        except StopIteration as e:
            found = e.value
            break
        steps += 1
        log.append(batch(b"later", timestamps=[START_MS + 9000]))
    assert found == (START_MS + 4999, 4999)
    assert steps >= 5000 // 256
