"""Transactions in one log against a model: what a reader of committed data gets from any offset on, through
rolled segments, clean stops and crashes. The last stable offset neither falls nor passes an open one.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kafkalog_broker.log.log import Log
from kafkalog_broker.logs.manager import LogManager
from tests.support.examples import examples
from tests.support.log.committed import committed
from tests.support.log.logs import batch, crash, open_log

ONE = len(batch(b"0000"))

producers = st.integers(1, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("data"), producers),
        st.tuples(st.just("data"), producers),
        st.tuples(st.sampled_from(["commit", "abort", "fence"]), producers),
        st.tuples(st.sampled_from(["plain", "stop", "crash", "lose snapshot"]), st.just(0)),
    ),
    max_size=30,
)


class Model:
    """What was appended, and what became of it."""

    def __init__(self) -> None:
        self.values: list[tuple[int, bytes, int]] = []  # offset, value, producer (0: none)
        self.open: dict[int, int] = {}
        self.aborted: set[int] = set()
        self.epochs = dict.fromkeys(range(1, 4), 0)
        self.sequences = dict.fromkeys(range(1, 4), 0)
        self.end = 0

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def expected(self, start: int) -> list[bytes]:
        return [v for o, v, _ in self.values if start <= o < self.stable and o not in self.aborted]

    def step(self, log: Log, what: str, producer: int) -> None:
        value = b"%04d" % self.end
        if what == "plain":
            log.append(batch(value))
            self.values.append((self.end, value, 0))
        elif what == "data":
            log.append(
                batch(
                    value, transactional=True, producer_id=producer, producer_epoch=self.epochs[producer],
                    base_sequence=self.sequences[producer],
                )
            )  # fmt: skip
            self.sequences[producer] += 1
            self.values.append((self.end, value, producer))
            self.open.setdefault(producer, self.end)
        else:
            if what == "fence":
                self.epochs[producer] += 1
                self.sequences[producer] = 0
            log.end_transaction(producer, self.epochs[producer], commit=what == "commit")
            first = self.open.pop(producer, self.end)
            if what != "commit":
                self.aborted |= {o for o, _, p in self.values if p == producer and o >= first}
        self.end += 1


def restarted(manager: LogManager, path: Path, what: str, **config: int) -> tuple[LogManager, Log]:
    if what == "stop":
        manager.close()
    crash(manager)
    if what == "lose snapshot":
        for lost in path.glob("*/producers.snapshot"):
            lost.unlink()
    return open_log(path, **config)


@examples(150)
@given(steps, st.integers(2, 6), st.data())
def test_readers_of_committed_data_see_all_of_it_and_nothing_else(
    plan: list[tuple[str, int]], batches_a_segment: int, data: st.DataObject
) -> None:
    path = Path(tempfile.mkdtemp())
    config = {
        "segment_bytes": batches_a_segment * ONE,
        "index_interval_bytes": data.draw(st.sampled_from([0, 200])),
    }
    manager, log = open_log(path, **config)
    model, before = Model(), 0
    try:
        for what, producer in plan:
            if what in ("stop", "crash", "lose snapshot"):
                manager, log = restarted(manager, path, what, **config)
            else:
                model.step(log, what, producer)
            assert log.end_offset == model.end
            assert log.last_stable_offset == model.stable >= before
            before = model.stable
        for start in range(model.stable + 1):
            for max_bytes in (1, 3 * ONE, 1 << 20):
                assert committed(log, start, max_bytes) == model.expected(start)
    finally:
        crash(manager)
        shutil.rmtree(path)
