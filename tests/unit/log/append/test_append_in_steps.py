"""Appends that take long are checked and numbered in steps, and written in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.log.family import AppendResult
from kafkalog_broker.log.log import Log
from pyspark_kafkalog.errors import KafkaError, MessageTooLarge
from pyspark_kafkalog.formats import v07
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.legacy import CODECS
from pyspark_kafkalog.steps import Steps, run_steps, with_jobs_run
from tests.support.log.logs import (
    START_MS,
    batch,
    contents,
    crash_all,
    message_set,
    open_log,
    read_all,
    values,
)
from tests.support.manual_clock import ManualClock

MANY = [b"%d" % number for number in range(1000)]

OLD_SETS = {
    f"v{magic} {codec.name.lower()} {order}": lambda m=magic, c=codec, o=offsets: message_set(
        *MANY, magic=m, codec=c, inner_offsets=o
    )
    for magic in (0, 1)
    for codec in CODECS
    for order, offsets in (("in order", None), ("not in order", [0] * len(MANY)))
}


def set_07() -> bytearray:
    inner = v07.encode_set(MANY, codec=Codec.GZIP)
    nested = v07.encode_message(compress(Codec.GZIP, inner + inner), codec=Codec.GZIP)
    return bytearray(nested + v07.encode_set(MANY))


def stored(log: Log) -> bytes:
    return contents(log.read(log.start_offset, 1 << 22, at_least_one=True))


def counted(steps: Steps[AppendResult]) -> tuple[int, AppendResult]:
    """How many steps there were, and what came of them."""
    count, each = 0, with_jobs_run(steps)
    while True:
        try:
            next(each)
        except StopIteration as e:
            return count, e.value
        count += 1


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Any:
    yield
    crash_all()


@pytest.mark.long("many cases")
@pytest.mark.parametrize("data", OLD_SETS.values(), ids=OLD_SETS)
@pytest.mark.parametrize("format_version", ["", "0.9.0", "0.10.0", "0.11.0"])
def test_steps_append_what_one_go_does(
    tmp_path: Path, data: Callable[[], bytearray], format_version: str
) -> None:
    found = []
    for name in ("one_go", "steps"):
        options = {"message_format_version": format_version} if format_version else {}
        log = open_log(tmp_path / name, **options)[1]
        if format_version in ("", "0.11.0"):
            log.append(batch(b"before"))
        if name == "steps":
            assert log.takes_long(memoryview(data()))
            count, result = counted(log.append_in_steps(data()))
            assert count >= len(MANY) // 64
        else:
            result = log.append(data())
        found.append((result, stored(log)))
    assert found[0] == found[1]


def test_steps_of_07_append_what_one_go_does(tmp_path: Path) -> None:
    found = []
    for name in ("one_go", "steps"):
        log = open_log(tmp_path / name, generation="0.7", flush_messages=1)[1]
        if name == "steps":
            count, result = counted(log.append_in_steps(set_07()))
            assert count >= 3 * len(MANY) // 64
        else:
            result = log.append(set_07())
        found.append((result, stored(log)))
    assert found[0] == found[1]
    assert found[0][0].record_count == 3 * len(MANY)


@pytest.mark.long("many cases")
@pytest.mark.parametrize("data", OLD_SETS.values(), ids=OLD_SETS)
@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
def test_what_others_append_meanwhile_comes_first(
    tmp_path: Path, data: Callable[[], bytearray], always: bool
) -> None:
    log = open_log(tmp_path)[1]
    each = with_jobs_run(log.append_in_steps(data()))
    others = 0
    while True:
        try:
            next(each)
        except StopIteration as e:
            result = e.value
            break
        if always or not others:
            log.append(batch(b"other"))
            others += 1
    assert others == 1 or always
    assert (result.base_offset, result.record_count) == (others, len(MANY))
    assert log.end_offset == others + len(MANY)
    assert values(log) == [b"other"] * others + MANY
    assert [r.offset for r in read_all(log)] == list(range(log.end_offset))


def _records(log: Log) -> list[Any]:
    return list(read_all(log))


@pytest.mark.parametrize("data", OLD_SETS.values(), ids=OLD_SETS)
def test_steps_that_end_early_append_nothing(tmp_path: Path, data: Callable[[], bytearray]) -> None:
    log = open_log(tmp_path)[1]
    total, _ = counted(log.append_in_steps(data()))
    end, size = log.end_offset, log.size_bytes
    for steps in range(0, total, 7):
        each = log.append_in_steps(data())
        walk = with_jobs_run(each)
        for _ in range(steps):
            next(walk)
        each.close()
        assert (log.end_offset, log.size_bytes) == (end, size)


def test_a_log_that_was_closed_meanwhile_takes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)[1]
    each = with_jobs_run(log.append_in_steps(message_set(*MANY, magic=0)))
    next(each)
    log.close()
    with pytest.raises(KafkaError, match="closed"):
        for _ in each:
            pass


def test_a_bad_message_late_in_a_set_refuses_all_of_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_message_bytes=100)[1]
    with pytest.raises(MessageTooLarge):
        run_steps(log.append_in_steps(message_set(*MANY, b"x" * 100, magic=0)))
    assert log.end_offset == 0


def test_the_log_append_time_is_that_of_the_append(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock=clock, message_timestamp_type="LogAppendTime")[1]
    each = with_jobs_run(log.append_in_steps(message_set(*MANY, magic=1, codec=Codec.GZIP)))
    next(each)
    clock.advance(5.0)
    result = None
    while result is None:
        try:
            next(each)
        except StopIteration as e:
            result = e.value
    assert result.log_append_time_ms == START_MS + 5000
    assert {record.timestamp for record in read_all(log)} == {START_MS + 5000}
