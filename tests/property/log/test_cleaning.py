"""Random logs of keys, tombstones, producers, transactions, codecs and formats: whatever the cleaner takes,
readers find the last value of each key, and producers go on where they were.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafkalog_broker.log.append.producer_states import SNAPSHOT_NAME
from kafkalog_broker.log.log import Log
from kafkalog_broker.logs.manager import LogManager
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import encode_set
from pyspark_kafkalog.types import NewRecord
from tests.support.examples import examples
from tests.support.log.cleaning import Kept, cleaner_of, committed_records, keyed
from tests.support.log.data_directories import checked, damages
from tests.support.log.logs import START_MS, crash, open_log
from tests.support.manual_clock import ManualClock

KEYS = [b"a", b"b", b"c", b"a key that is longer than what the map takes", b""]
RETENTION_MS = 60_000
CONFIG: dict[str, Any] = {
    "cleanup_policy": ("compact",),
    "segment_bytes": 600,
    "index_interval_bytes": 150,
    "min_cleanable_dirty_ratio": 0.0,
    "delete_retention_ms": RETENTION_MS,
}

old_codecs = st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4])
pairs = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=40)), min_size=1, max_size=8)


class Cleanings(RuleBasedStateMachine):
    """*Not thread-safe.* A log, and every record that was ever appended to it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = ManualClock(START_MS)
        self.all: dict[int, Kept] = {}
        self.aborted: set[int] = set()
        self.open: dict[int, list[int]] = {}
        self.sequences: dict[int, int] = {}
        self.manager: LogManager
        self.log: Log

    @initialize()
    def begin(self) -> None:
        self._open()

    def _open(self) -> None:
        self.manager, self.log = open_log(Path(self.directory.name), clock=self.clock, **CONFIG)

    def _took(self, base_offset: int, records: list[tuple[bytes, bytes | None]]) -> list[int]:
        offsets = list(range(base_offset, base_offset + len(records)))
        for offset, (key, value) in zip(offsets, records, strict=True):
            self.all[offset] = Kept(offset, key, value)
        return offsets

    @rule(records=pairs, codec=st.sampled_from(list(Codec)), times=st.integers(0, 1000))
    def append(self, records: list[tuple[bytes, bytes | None]], codec: Codec, times: int) -> None:
        result = self.log.append(keyed(*records, codec=codec, timestamp=START_MS + times))
        self._took(result.base_offset, records)

    @rule(records=pairs, codec=old_codecs, magic=st.sampled_from([0, 1]))
    def append_old(self, records: list[tuple[bytes, bytes | None]], codec: Codec, magic: int) -> None:
        new = [NewRecord(value, key, START_MS) for key, value in records]
        result = self.log.append(bytearray(encode_set(new, magic=magic, codec=codec)))
        self._took(result.base_offset, records)

    @rule(records=pairs, producer=st.integers(1, 3), transactional=st.booleans())
    def produce(self, records: list[tuple[bytes, bytes | None]], producer: int, transactional: bool) -> None:
        producer_id = producer + 10 * transactional
        sequence = self.sequences.get(producer_id, 0)
        batch = keyed(
            *records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
            transactional=transactional,
        )  # fmt: skip
        offsets = self._took(self.log.append(batch).base_offset, records)
        self.sequences[producer_id] = sequence + len(records)
        if transactional:
            self.open.setdefault(producer_id, []).extend(offsets)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: st.DataObject, commit: bool) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.open)))
        self.log.end_transaction(producer_id, 0, commit=commit)
        offsets = self.open.pop(producer_id)
        if not commit:
            self.aborted.update(offsets)

    @rule(memory_bytes=st.sampled_from([160, 800, 1 << 20]))
    def clean(self, memory_bytes: int) -> None:
        stable = self.log.last_stable_offset
        full = [s.next_offset for s in self.log.segments[:-1] if s.next_offset <= stable]
        cleaner_of(self.manager, self.clock, memory_bytes=memory_bytes).run()
        end_offset = self.log.cleaned_offset
        assert end_offset == max(full, default=0)
        found = [r for r in committed_records(self.log) if r.offset < end_offset]
        assert len({r.key for r in found}) == len(found)

    @rule(ms=st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms / 1000)

    @rule(clean=st.booleans(), snapshot=st.booleans())
    def restart(self, clean: bool, snapshot: bool) -> None:
        if clean:
            self.manager.close()
        else:
            self.log.flush()
            crash(self.manager)
        if not snapshot:
            (self.log.path / SNAPSHOT_NAME).unlink(missing_ok=True)
        found = damages(checked(self.log.path, deep=True)) if clean else []
        self._open()
        assert found == []

    @invariant()
    def last_values_are_there(self) -> None:
        if not hasattr(self, "log"):
            return
        stable = self.log.last_stable_offset
        assert stable == min((offsets[0] for offsets in self.open.values()), default=self.log.end_offset)
        found = committed_records(self.log)
        assert [r.offset for r in found] == sorted({r.offset for r in found})
        assert all(self.all[r.offset] == r and r.offset not in self.aborted for r in found)
        want = {r.key: r for r in self.all.values() if r.offset not in self.aborted and r.offset < stable}
        last = {r.key: r for r in found}
        for key, record in want.items():
            if record.value is not None or key in last:
                assert last[key] == record

    @invariant()
    def producers_are_known(self) -> None:
        if hasattr(self, "log"):
            found = {p.producer_id: p.last_sequence + 1 for p in self.log.known_producers()}
            assert found == self.sequences

    def teardown(self) -> None:
        if hasattr(self, "log"):
            # Two cleanings later, the second after the horizon of the first, no tombstone is left below.
            for producer_id in list(self.open):
                self.log.end_transaction(producer_id, 0, commit=False)
            before = self.log.end_offset
            for _ in range(3):
                self.clock.advance(RETENTION_MS / 1000)
                for number in range(12):
                    self.log.append(keyed((b"z", b"%050d" % number)))
                cleaner_of(self.manager, self.clock).run()
            left = [r for r in committed_records(self.log) if r.offset < before and r.value is None]
            horizon = {r.offset for r in left if self._is_legacy(r.offset)}
            assert {r.offset for r in left} == horizon
            crash(self.manager)
        self.directory.cleanup()

    def _is_legacy(self, offset: int) -> bool:
        """Tombstones of v0 and v1 wait for the time of their file, which is that of this machine."""
        segment = next(s for s in reversed(self.log.segments) if s.base_offset <= offset)
        return any(
            (head[16] < 2 and frame.first_offset <= offset <= frame.last_offset) or head[16] < 2
            for frame, head in segment.heads(segment.base_offset, 61)
            if frame.last_offset >= offset
        )


TestCleanings = Cleanings.TestCase
TestCleanings.settings = examples(12, stateful_step_count=25, suppress_health_check=list(HealthCheck))
