"""A log for those who know less than it holds: what is sent as it lies, what is made, what it may cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kafkalog_broker.log.file_slice import FileSlice, MemorySlice
from kafkalog_broker.log.log import Log
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.server import old_fetch
from kafkalog_broker.server.log_access import Allowance, Entries
from kafkalog_broker.server.old_fetch import OlderReader
from kafkalog_broker.server.view07 import View07
from pyspark_kafkalog.errors import CorruptMessage, KafkaError, MessageTooLarge, UnsupportedCompression
from pyspark_kafkalog.formats.batch import ControlType, encode_batch, encode_control, magic_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.formats.message_set import frames, records
from pyspark_kafkalog.types import NewRecord, Record
from tests.support.examples import examples
from tests.support.log.logs import START_MS, batch, crash, crash_all, open_log
from tests.support.protocol.wire07 import entry, zipped


@pytest.fixture(autouse=True)
def _no_manager_outlives_its_test() -> Iterator[None]:
    yield
    crash_all()


def old(magic: int, *values: bytes, codec: Codec = Codec.NONE) -> bytes:
    return encode_set([NewRecord(v, b"k", START_MS) for v in values], magic=magic, codec=codec)


def log_of(path: Path, *sets: bytes | bytearray, **options: Any) -> Log:
    log = open_log(path, **options)[1]
    for each in sets:
        log.append(bytearray(each))
    return log


def reader(
    log: Log, version: int, metrics: Metrics | None = None, whole: Allowance | None = None
) -> OlderReader:
    allowance = (whole or Allowance()).part()
    return OlderReader(log, version, allowance, metrics or Metrics())


def read(log: Log, version: int, offset: int = 0, max_bytes: int = 1 << 20, **options: Any) -> Entries:
    found = reader(log, version).read(
        offset, max_bytes, at_least_one=options.pop("at_least_one", True), **options
    )
    assert isinstance(found, FileSlice | MemorySlice)
    return found


def told(found: Entries, start: int = 0) -> list[Record]:
    return list(records(memoryview(found.read()), start_offset=start, max_bytes=1 << 26))


def values(found: Entries) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in told(found)]


def magics(found: Entries) -> set[int]:
    data = memoryview(found.read())
    return {magic_at(data, frame.position) for frame in frames(data)}


@pytest.mark.parametrize("version", [0, 1])
def test_a_log_of_v0_is_sent_from_the_file_to_old_clients(tmp_path: Path, version: int) -> None:
    log = log_of(tmp_path, old(0, b"a", b"b"), old(0, b"c", codec=Codec.GZIP))
    found = read(log, version)
    assert isinstance(found, FileSlice)
    assert values(found) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize(("version", "stored"), [(0, 0), (3, 0), (3, 1)])
def test_what_a_segment_is_known_to_hold_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, stored: int
) -> None:
    log = log_of(tmp_path, *[old(stored, b"a")] * 5)
    monkeypatch.setattr(old_fetch, "_readable", None)  # calling it would fail
    assert isinstance(read(log, version), FileSlice)


@pytest.mark.parametrize(("version", "stored"), [(0, 0), (3, 1)])
def test_after_a_restart_the_heads_of_entries_are_looked_at(
    tmp_path: Path, version: int, stored: int
) -> None:
    manager, log = open_log(tmp_path)
    for n in range(300):
        log.append(bytearray(old(stored, b"x" * n)))
    size = log.size_bytes
    manager.close()
    log = open_log(tmp_path)[1]
    found = read(log, version)
    assert isinstance(found, FileSlice)
    assert len(found) == size


def test_what_was_looked_at_once_is_known_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, log = open_log(tmp_path)
    for _ in range(50):
        log.append(bytearray(old(1, b"x")))
    manager.close()
    log = open_log(tmp_path)[1]
    half = log.size_bytes // 2
    read(log, 2, 0, half)
    read(log, 2, 25)
    log.append(bytearray(old(1, b"x")))
    looked: list[int] = []

    def note(piece: Entries, _: object) -> tuple[int, bool]:
        looked.append(len(piece))
        return 0, False

    monkeypatch.setattr(old_fetch, "_readable", note)
    assert len(read(log, 3, 0, half)) + len(read(log, 2, 10, half)) == 2 * half
    assert looked == []
    read(log, 0, 0, half)  # one who knows v0 only is not helped
    read(log, 2, 25)  # nor one who reads what came since
    assert looked == [half, log.size_bytes - half]


def test_old_entries_before_a_newer_one_are_sent_from_the_file_alone(tmp_path: Path) -> None:
    log = log_of(tmp_path, old(0, b"a"), old(1, b"b"), batch(b"c"), old(0, b"d"))
    whole = Allowance()
    first = reader(log, 3, whole=whole).read(0, 1 << 20, at_least_one=True)
    assert isinstance(first, FileSlice)
    assert (values(first), whole.short) == ([(0, b"a"), (1, b"b")], True)
    rest = read(log, 3, 2)
    assert isinstance(rest, MemorySlice)
    assert (values(rest), magics(rest)) == ([(2, b"c"), (3, b"d")], {0, 1})


@pytest.mark.parametrize(("version", "most"), [(0, 0), (1, 0), (2, 1), (3, 1)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_batches_are_converted_to_the_newest_format_that_the_client_knows(
    tmp_path: Path, version: int, most: int, codec: Codec
) -> None:
    log = log_of(tmp_path, *[batch(b"%d" % n, b"x" * 50, codec=codec) for n in range(3)])
    found = read(log, version)
    assert magics(found) == {most}
    assert [(r.offset, r.timestamp) for r in told(found)] == [(n, START_MS if most else -1) for n in range(6)]
    assert [r.value for r in told(found)][::2] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("version", range(4))
def test_zstd_ends_an_answer_and_is_refused_where_it_begins_one(tmp_path: Path, version: int) -> None:
    log = log_of(tmp_path, batch(b"a"), batch(b"b", codec=Codec.ZSTD), batch(b"c"))
    assert values(read(log, version)) == [(0, b"a")]
    with pytest.raises(UnsupportedCompression):
        read(log, version, 1)
    assert values(read(log, version, 2)) == [(2, b"c")]


def test_control_batches_are_left_out_and_passed_over(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    marker = bytearray(
        encode_control(ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp=START_MS)
    )
    log.append(batch(b"a"))
    for _ in range(3000):  # more than one read of the log
        log.append(bytearray(marker), internal=True)
    log.append(batch(b"b"))
    log.append(bytearray(marker), internal=True)
    assert values(read(log, 2)) == [(0, b"a"), (3001, b"b")]
    assert values(read(log, 2, 1)) == [(3001, b"b")]
    assert len(read(log, 2, 3002)) == 0


def test_limits_hold_but_for_a_first_entry_that_must_be_whole(tmp_path: Path) -> None:
    log = log_of(tmp_path, batch(b"x" * 100, b"y" * 100), batch(b"z"))
    one = len(read(log, 3, 0, 1))
    assert values(read(log, 3, 0, 1)) == [(0, b"x" * 100)]
    assert [len(read(log, 3, 0, limit)) for limit in (0, one - 1, one, one + 7)] == [one, one, one, one + 7]
    assert values(read(log, 3, 0, one + 7)) == [(0, b"x" * 100)]
    whole = 2 * one + len(read(log, 3, 2))
    assert [len(read(log, 3, 0, n, at_least_one=False)) for n in (0, one - 1, 1000)] == [0, 0, whole]


def test_the_end_of_the_log_is_empty(tmp_path: Path) -> None:
    log = log_of(tmp_path, batch(b"a"))
    assert [len(read(log, version, 1)) for version in (0, 3)] == [0, 0]


def test_an_answer_goes_over_the_ends_of_segments(tmp_path: Path) -> None:
    log = log_of(tmp_path, *[batch(b"%d" % n) for n in range(6)], segment_bytes=150)
    assert log.segment_count > 1
    assert values(read(log, 1)) == [(n, b"%d" % n) for n in range(6)]


def test_damage_is_an_error_where_it_begins_an_answer_and_ends_it_elsewhere(tmp_path: Path) -> None:
    log = log_of(tmp_path, batch(b"a"), batch(b"bbbb"), batch(b"c"))
    path = next(tmp_path.glob("*/*.kafka"))
    data = bytearray(path.read_bytes())
    data[data.index(b"bbbb")] ^= 1
    path.write_bytes(data)
    assert values(read(log, 2)) == [(0, b"a")]
    with pytest.raises(CorruptMessage):
        read(log, 2, 1)
    assert values(read(log, 2, 2)) == [(2, b"c")]


def test_a_batch_that_unfolds_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_fetch, "MAX_DECOMPRESSED_BYTES", 5000)
    log = log_of(tmp_path, batch(bytes(6000), codec=Codec.GZIP))
    with pytest.raises(MessageTooLarge):
        read(log, 2)


def test_what_was_made_is_counted_and_what_was_not_is_not(tmp_path: Path) -> None:
    metrics = Metrics()
    log = log_of(tmp_path, old(0, b"old"), batch(b"a", b"b"), old(1, b"c"))
    first = reader(log, 1, metrics).read(0, 1 << 20, at_least_one=True)
    sample = metrics.registry.get_sample_value
    assert (len(told(first)), sample("kafkalog_broker_converted_messages_total")) == (1, 0)
    rest = reader(log, 1, metrics).read(1, 1 << 20, at_least_one=True)
    assert sample("kafkalog_broker_converted_messages_total") == 3
    assert sample("kafkalog_broker_converted_bytes_total") == len(rest)


def test_one_request_gets_so_much_work_and_says_that_there_is_more(tmp_path: Path) -> None:
    log = log_of(tmp_path, *[batch(b"x" * 1000, b"y" * 1000) for _ in range(100)])
    whole = Allowance(100_000)
    found = reader(log, 2, whole=whole).read(0, 1 << 20, at_least_one=True)
    assert 50_000 <= len(found) < 50_000 + 2 * 2100
    assert whole.short


def test_each_of_many_partitions_gets_a_little_until_the_request_has_had_twice_its_share(
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path, *[batch(*[b"x" * 1000] * 10) for _ in range(100)])
    whole = Allowance(100_000)
    sizes = [len(reader(log, 2, whole=whole).read(0, 1 << 20, at_least_one=True)) for _ in range(50)]
    begun = sizes.index(0)
    assert 10 < begun < 50
    assert set(sizes[begun:]) == {0}
    assert 200_000 <= sum(sizes) < 300_000
    assert min(sizes[:begun]) <= 4 << 10


def test_a_log_of_07_is_converted_to_old_messages_from_any_byte(tmp_path: Path) -> None:
    log = open_log(tmp_path, generation="0.7")[1]
    log.append(entry(b"one") + zipped(entry(b"two"), entry(b"three")) + entry(b"four"))
    log.flush()
    view = View07(Metrics())

    def read_all(offset: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        while True:
            source = OlderReader(view(log, Allowance().part()), 1, Allowance().part(), Metrics())
            new = [r for r in told(source.read(offset, 60, at_least_one=True)) if r.offset >= offset]
            if not new:
                return found
            found += [r.value for r in new]
            offset = new[-1].next_offset

    assert read_all(0) == [b"one", b"two", b"three", b"four"]
    for offset in range(1, log.readable_end + 1):
        assert read_all(offset) in ([b"two", b"three", b"four"], [b"three", b"four"], [b"four"], [])


RECORDS = st.lists(
    st.builds(
        NewRecord, st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=5), st.just(START_MS)
    ),
    min_size=1,
    max_size=4,
)
SETS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]), RECORDS),
    min_size=1,
    max_size=8,
)


@pytest.mark.long("every mixture of formats")
@examples(60, suppress_health_check=list(HealthCheck))
@given(SETS, st.integers(0, 3), st.data())
def test_whatever_lies_there_everybody_reads_the_same_records(
    tmp_path_factory: pytest.TempPathFactory,
    sets: list[tuple[int, Codec, list[NewRecord]]],
    version: int,
    data: st.DataObject,
) -> None:
    manager, log = open_log(tmp_path_factory.mktemp("log"), segment_bytes=400)
    expected = []
    for magic, codec, new in sets:
        made = encode_batch(new, codec=codec) if magic == 2 else encode_set(new, magic=magic, codec=codec)
        log.append(bytearray(made))
        expected += [(record.key, record.value) for record in new]
    offset = data.draw(st.integers(0, len(expected)))
    found: list[Record] = []
    while True:
        limit = data.draw(st.integers(0, 300))
        start = found[-1].next_offset if found else offset
        piece = reader(log, version).read(start, limit, at_least_one=True)
        assert max(magics(piece), default=0) <= (0, 0, 1, 1)[version]
        got = [r for r in told(piece) if r.offset >= start]
        if not got:
            break
        found += got
    assert [(r.offset, (r.key, r.value)) for r in found] == [
        (n, record) for n, record in enumerate(expected) if n >= offset
    ]
    crash(manager)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_an_offset_that_is_not_there_is_refused_as_the_log_does(tmp_path: Path, version: int) -> None:
    with pytest.raises(KafkaError, match="outside"):
        read(log_of(tmp_path, batch(b"a")), version, 2)
