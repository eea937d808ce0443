"""Appends that take long are checked and numbered without the log's lock, while others append."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.log.log import Log
from pyspark_kafkalog.errors import KafkaError, MessageTooLarge
from pyspark_kafkalog.formats import v07
from pyspark_kafkalog.formats.compression import Codec, compress
from pyspark_kafkalog.formats.legacy import CODECS
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

MANY = [b"%d" % number for number in range(3000)]

OLD_SETS = {
    f"v{magic} {codec.name.lower()} {order}": lambda m=magic, c=codec, o=offsets: message_set(
        *MANY, magic=m, codec=c, inner_offsets=o
    )
    for magic in (0, 1)
    for codec in CODECS
    for order, offsets in (("in order", None), ("not in order", [0] * len(MANY)))
}


class InterruptedClock(ManualClock):
    """Has something done whenever the log asks for the time, which it does before each numbering."""

    def __init__(self) -> None:
        super().__init__(START_MS)
        self.do: Callable[[int], object] | None = None
        self._asked = 0

    def time_ms(self) -> int:
        do, self.do = self.do, None  # what is done may ask for the time itself
        if do is not None:
            self._asked += 1
            do(self._asked)
            self.do = do
        return super().time_ms()


@pytest.fixture
def clock() -> Any:
    yield InterruptedClock()
    crash_all()


@pytest.mark.parametrize("data", OLD_SETS.values(), ids=OLD_SETS)
@pytest.mark.parametrize("times", [1, 10], ids=["once", "always"])
def test_what_others_append_meanwhile_comes_first(
    tmp_path: Path, clock: InterruptedClock, data: Callable[[], bytearray], times: int
) -> None:
    log = open_log(tmp_path, clock=clock)[1]
    others = 0

    def append_another(asked: int) -> None:
        nonlocal others
        if 1 < asked <= 1 + times:
            log.append(batch(b"other"))
            others += 1

    clock.do = append_another
    result = log.append(data())
    clock.do = None
    assert others == min(times, 3)  # as often as it is numbered without the lock
    assert (result.base_offset, result.record_count) == (others, len(MANY))
    assert values(log) == [b"other"] * others + MANY
    assert [record.offset for record in read_all(log)] == list(range(log.end_offset))


def test_messages_of_07_are_stored_as_they_came(tmp_path: Path) -> None:
    inner = v07.encode_set(MANY, codec=Codec.GZIP)
    data = v07.encode_message(compress(Codec.GZIP, inner + inner), codec=Codec.GZIP) + v07.encode_set(MANY)
    log = open_log(tmp_path, generation="0.7", flush_messages=1)[1]
    assert log.takes_long(memoryview(data))
    assert log.append(bytearray(data)).record_count == 3 * len(MANY)
    assert contents(log.read(0, 1 << 22, at_least_one=True)) == data
    crash_all()


def test_a_log_that_was_closed_meanwhile_takes_nothing(tmp_path: Path, clock: InterruptedClock) -> None:
    log = open_log(tmp_path, clock=clock)[1]
    clock.do = lambda _: log.close()
    with pytest.raises(KafkaError, match="closed"):
        log.append(message_set(*MANY, magic=0))


def test_a_bad_message_late_in_a_set_refuses_all_of_it(tmp_path: Path, clock: InterruptedClock) -> None:
    log: Log = open_log(tmp_path, clock=clock, max_message_bytes=100)[1]
    with pytest.raises(MessageTooLarge):
        log.append(message_set(*MANY, b"x" * 100, magic=0))
    assert log.end_offset == 0


def test_the_log_append_time_is_that_of_the_append(tmp_path: Path, clock: InterruptedClock) -> None:
    log = open_log(tmp_path, clock=clock, message_timestamp_type="LogAppendTime")[1]
    clock.do = lambda asked: clock.advance(5.0) if asked == 2 else None
    result = log.append(message_set(*MANY, magic=1, codec=Codec.GZIP))
    clock.do = None
    assert result.log_append_time_ms == START_MS + 5000
    assert {record.timestamp for record in read_all(log)} == {START_MS + 5000}
