"""Any sequence of appends in all formats, reads, flushes, deletions and restarts does what a list would."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafkalog_broker.disk.data_directory import RECOVERY_POINTS_NAME, read_table
from kafkalog_broker.disk.filesystem import FileSystem
from pyspark_kafkalog.errors import OffsetOutOfRange
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import CODECS
from pyspark_kafkalog.formats.message_set import frames, records
from tests.support.examples import examples
from tests.support.log.logs import FIRST, START_MS, batch, contents, crash, message_set, open_log, read_all
from tests.support.manual_clock import ManualClock

TIMES = st.integers(-1, 60)
"""Milliseconds after the start, few enough for many to be equal; -1 is a record without a time."""


@dataclass(frozen=True)
class _Stored:
    """What the model knows of a record: the base offset of its entry says with whom it is read."""

    offset: int
    base_offset: int
    value: bytes
    timestamp: int


class LogModel(RuleBasedStateMachine):
    """The log against a list of `_Stored` that begins at the log's start offset."""

    @initialize(
        segment_bytes=st.sampled_from([100, 300, 1000, 1 << 30]),
        interval=st.sampled_from([0, 150, 4096]),
        flush_messages=st.sampled_from([1, 3, 1 << 40]),
        max_open=st.sampled_from([1, 2, 100]),
        retention_bytes=st.sampled_from([0, 400, 2000]),
    )
    def make(
        self, segment_bytes: int, interval: int, flush_messages: int, max_open: int, retention_bytes: int
    ) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.clock = ManualClock(START_MS)
        self.options = {
            "segment_bytes": segment_bytes,
            "segment_ms": 50,
            "index_interval_bytes": interval,
            "flush_messages": flush_messages,
            "flush_ms": 0,
            "max_open_files": max_open,
            "retention_bytes": retention_bytes,
            "retention_ms": -1,
            "file_delete_delay_ms": 0,
        }
        self.model: list[_Stored] = []
        self.end = 0
        self.producer_id = self.sequence = 0
        self.open()

    def open(self) -> None:
        self.manager, self.log = open_log(self.path, clock=self.clock, **self.options)

    def teardown(self) -> None:
        if hasattr(self, "path"):
            crash(self.manager)
            shutil.rmtree(self.path)

    @rule(
        batches=st.lists(
            st.tuples(st.lists(TIMES, min_size=1, max_size=4), st.sampled_from(Codec)), min_size=1, max_size=3
        )
    )
    def append(self, batches: list[tuple[list[int], Codec]]) -> None:
        request = bytearray()
        new = []
        offset = self.end
        for times, codec in batches:
            stamps = [START_MS + ms if ms >= 0 else -1 for ms in times]
            texts = [b"%d" % (offset + n) for n in range(len(times))]
            request += batch(*texts, timestamps=stamps, codec=codec)
            new += [_Stored(offset + n, offset, texts[n], stamps[n]) for n in range(len(times))]
            offset += len(times)
        result = self.log.append(request)
        assert (result.base_offset, result.last_offset) == (self.end, offset - 1)
        self.model += new
        self.end = offset

    @rule(
        magic=st.sampled_from([0, 1]),
        sets=st.lists(
            st.tuples(
                st.lists(st.tuples(TIMES, st.integers(0, 3)), min_size=1, max_size=4),
                st.sampled_from(CODECS),
                st.booleans(),
            ),
            min_size=1,
            max_size=3,
        ),
    )
    def append_message_sets(self, magic: int, sets: list[tuple[list[tuple[int, int]], Codec, bool]]) -> None:
        request = bytearray()
        new = []
        offset = self.end
        for messages, codec, in_order in sets:
            stamps = [START_MS + ms if ms >= 0 else -1 for ms, _ in messages]
            texts = [b"%d" % (offset + n) for n in range(len(messages))]
            inner = range(len(messages)) if in_order else [number for _, number in messages]
            request += message_set(*texts, magic=magic, timestamps=stamps, codec=codec, inner_offsets=inner)
            for n, stamp in enumerate(stamps):
                together = offset if codec else offset + n
                new.append(_Stored(offset + n, together, texts[n], stamp if magic else -1))
            offset += len(messages)
        result = self.log.append(request)
        assert (result.base_offset, result.last_offset) == (self.end, offset - 1)
        self.model += new
        self.end = offset

    @rule(again=st.booleans())
    def append_with_sequence(self, again: bool) -> None:
        value = b"%d" % self.end
        numbers = {"producer_id": self.producer_id, "producer_epoch": 0, "base_sequence": self.sequence}
        result = self.log.append(batch(value, **numbers))
        assert result.base_offset == self.end
        self.model.append(_Stored(self.end, self.end, value, START_MS))
        self.end += 1
        if again:
            repeated = self.log.append(batch(value, **numbers))
            assert (repeated.base_offset, repeated.duplicate) == (result.base_offset, True)
        self.sequence += 1

    @rule(where=st.floats(-0.1, 1.1), max_bytes=st.integers(0, 1500), at_least_one=st.booleans())
    def read(self, where: float, max_bytes: int, at_least_one: bool) -> None:
        start = self.log.start_offset
        offset = start + round(where * (self.end - start))
        if not start <= offset <= self.end:
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset, max_bytes, at_least_one=at_least_one)
            return
        data = contents(self.log.read(offset, max_bytes, at_least_one=at_least_one))
        got = [
            (r.offset, r.value, r.timestamp)
            for r in records(memoryview(data), start_offset=0, max_bytes=1 << 20)
        ]
        base = next((s.base_offset for s in self.model if s.offset == offset), self.end)
        wanted = [(s.offset, s.value, s.timestamp) for s in self.model if s.base_offset >= base]
        assert got == wanted[: len(got)]
        if offset == self.end:
            assert data == b""
        elif at_least_one:
            assert got
        if data:
            first = next(frames(data)).size
            assert len(data) <= max(max_bytes, first if at_least_one else 0)

    @rule(ms=st.integers(-2, 62))
    def find_by_time(self, ms: int) -> None:
        timestamp = START_MS + ms
        wanted = next(((s.timestamp, s.offset) for s in self.model if s.timestamp >= timestamp), None)
        assert self.log.offset_for_timestamp(timestamp) == wanted

    @rule()
    def find_newest(self) -> None:
        newest = max((s.timestamp for s in self.model), default=-1)
        wanted = next(((s.timestamp, s.offset) for s in self.model if s.timestamp == newest), None)
        assert self.log.max_timestamp() == (wanted if newest >= 0 else None)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.flushed_offset == self.end

    @rule()
    def tick(self) -> None:
        self.clock.advance(0.01)
        self.manager.flush_due()

    @rule()
    def retire(self) -> None:
        size = self.log.size_bytes
        self.manager.apply_retention()
        limit = int(self.options["retention_bytes"])
        assert self.log.size_bytes >= min(size, limit)
        self.model = [s for s in self.model if s.offset >= self.log.start_offset]

    @rule()
    def stop_and_start(self) -> None:
        self.manager.close()
        self.open()

    @rule(tail=st.binary(max_size=80))
    def crash_and_start(self, tail: bytes) -> None:
        crash(self.manager)
        last = max(self.log.path.glob("*.kafka"))
        with last.open("ab") as file:
            file.write(tail)
        self.open()

    @rule(lost=st.integers(1, 300))
    def crash_lose_the_end_and_start(self, lost: int) -> None:
        crash(self.manager)
        last = max(self.log.path.glob("*.kafka"))
        data = last.read_bytes()
        noted = read_table(FileSystem(), self.path / RECOVERY_POINTS_NAME) or {}
        point = noted.get(self.log.path.name, (0, 0))[1]
        # No crash takes what was on the disk.
        kept = max((frame.end for frame in frames(data) if frame.next_offset <= point), default=0)
        data = data[: max(kept, len(data) - lost)]
        last.write_bytes(data)
        self.end = max((frame.next_offset for frame in frames(data)), default=int(last.stem))
        self.model = [s for s in self.model if s.offset < self.end]
        # What was lost is not known to the log; its producer would be told of a gap.
        self.producer_id, self.sequence = self.producer_id + 1, 0
        self.open()

    @rule(what=st.sampled_from(["*.index", "*.timeindex", "*.snapshot"]), keep=st.integers(0, 60))
    def stop_harm_and_start(self, what: str, keep: int) -> None:
        self.manager.close()
        for path in self.log.path.glob(what):
            path.write_bytes(path.read_bytes()[:keep])
        self.open()

    @precondition(lambda self: self.end > 0)
    @rule()
    def read_everything(self) -> None:
        got = [(r.offset, r.value) for r in read_all(self.log, max_bytes=400)]
        assert got == [(s.offset, s.value) for s in self.model]

    @invariant()
    def ends_agree(self) -> None:
        if hasattr(self, "log"):
            assert self.log.end_offset == self.end
            assert self.log.start_offset == (self.model[0].offset if self.model else self.end)
            assert (self.log.path / f"{FIRST}.kafka").exists() == (self.log.start_offset == 0)


LogModel.TestCase.settings = examples(60, stateful_step_count=30)
TestLogModel = LogModel.TestCase
