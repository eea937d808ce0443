"""Whose memory rows are in, and what is imported for them."""

from __future__ import annotations

import gc
import sys
import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_kafkalog.columnar import numba_engine
from pyspark_kafkalog.columnar.decoder import SINCE_08, EngineChoice, RecordBatchDecoder
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.types import NewRecord
from tests.support.columnar.rows import ENGINES, FOREVER, column, decode


def answer(first: int, count: int = 100) -> bytes:
    return encode_batch([NewRecord(b"%d" % (first + i)) for i in range(count)], base_offset=first)


def address(batch: pa.RecordBatch) -> int:
    return int(batch.column("value").buffers()[2].address)


def test_an_arena_is_used_again_once_nothing_refers_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_engine, "arenas", numba_engine.Pool())
    first = decode(answer(0), "numba").batches[0]
    place = address(first)
    kept = first.column("value").slice(50, 2)
    del first
    second = decode(answer(1000), "numba").batches[0]
    assert address(second) != place
    assert kept.to_pylist() == [b"50", b"51"]
    del kept
    assert address(decode(answer(0), "numba").batches[0]) == place


def test_the_pool_keeps_a_bounded_number_of_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    arenas = numba_engine.Pool()
    leases = [arenas.take(1) for _ in range(40)]
    assert len({lease.ctypes.data for lease in leases}) == 40
    assert all(lease.ctypes.data % 64 == 0 for lease in leases)
    leases.clear()
    assert 0 < sum(map(len, arenas._free)) <= numba_engine._KEPT_BYTES
    large = arenas.take(2 * numba_engine._KEPT_BYTES)
    assert len(large) >= 2 * numba_engine._KEPT_BYTES


def test_threads_that_take_and_return_arenas_at_once_meet_no_error() -> None:
    arenas, errors = numba_engine.Pool(), []

    def work() -> None:
        try:
            for _ in range(3_000):
                memory = arenas.take(1).base
                for _ in range(10):
                    arenas._give_back(memory)
        except Exception as e:
            errors.append(e)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert errors == []


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_decoded_stays_when_more_is_decoded(engine: str) -> None:
    decoder = RecordBatchDecoder(topic="t", partition=0, columns=["offset", "value", "topic"], engine=engine)  # type: ignore[arg-type]
    kept = [decoder.decode(memoryview(answer(100 * i)), 0, FOREVER) for i in range(30)]
    gc.collect()
    for i, decoded in enumerate(kept):
        assert column(decoded, "value") == [b"%d" % n for n in range(100 * i, 100 * i + 100)]


def test_threads_decode_at_once() -> None:
    found: dict[int, list[object]] = {}

    def work(number: int) -> None:
        for i in range(30):
            found[number] = column(decode(answer(1000 * number + i), "numba", start=0), "value")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert found[number] == [b"%d" % n for n in range(1000 * number + 29, 1000 * number + 129)]


def test_auto_begins_plain_and_goes_over_to_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = replace(SINCE_08, engines=EngineChoice("fill_columns"))
    monkeypatch.setattr("pyspark_kafkalog.columnar.decoder.WARM_UP_RECORDS", 150)
    decoder = RecordBatchDecoder(fresh, topic="t", partition=0, columns=["value"])
    engines, values = [], []
    for i in range(3):
        engines.append(decoder.engine)
        values += column(decoder.decode(memoryview(answer(100 * i)), 0, FOREVER), "value")
    assert engines == ["plain", "plain", "numba"]
    assert values == [b"%d" % n for n in range(300)]
