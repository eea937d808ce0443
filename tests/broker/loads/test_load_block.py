"""What the end of a ``with kafkalog.load(...)`` block commits, on a real broker and without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.errors import IncompleteLoad, LoadError
from pyspark_kafkalog.ledger.commit import LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.dead_letters import DeadLetters
from pyspark_kafkalog.loads.file_table import Work
from pyspark_kafkalog.loads.load import Load, load
from tests.support.datasource.spark_topics import Topic
from tests.support.loads.local_spark import LocalSpark
from tests.support.protocol.raw_client import RawClient

NOT_COMMITTED = r"load 1 of events was not committed: .*nothing.* call load\.done\(\).*call load\.keep\(\)"


class Loads:
    """Loads of one topic, which has 0-9 in partition 0 and 10-14 in partition 1."""

    def __init__(self, servers: str, topic: Topic, root: Path) -> None:
        self.topic, self._offsets = topic, root / "offsets"
        self._options: dict[str, Any] = {"kafka.bootstrap.servers": servers, "subscribe": topic.name}

    @property
    def ledger(self) -> Ledger:
        return Ledger.at(self._offsets, "events")

    def load(self, **options: Any) -> Load:
        return load(LocalSpark(), name="events", offsets=self._offsets, **self._options, **options)  # type: ignore[arg-type]

    def run(self) -> Load:
        with self.load() as done:
            done.df.count()
            done.done()
        return done


@pytest.fixture
def loads(running_broker: EmbeddedBroker, client: RawClient, topic: str, tmp_path: Path) -> Loads:
    rows = Topic(client, topic)
    rows.add(*range(10), partition=0)
    rows.add(*range(10, 15), partition=1)
    return Loads(running_broker.bootstrap_servers, rows, tmp_path)


class Place:
    """A target that reads all rows and keeps none; ``found``: an earlier attempt wrote them for good."""

    mode = "sink"

    def __init__(self, *, found: bool = False, fails: bool = False) -> None:
        self._found, self._fails = found, fails

    def check(self, work: Work, /) -> None:
        pass

    def find(self, work: Work, /) -> tuple[LoadOutput, ...]:
        return (LoadOutput("nowhere", "", (), "delta"),) if self._found else ()

    def write(self, work: Work, /) -> tuple[LoadOutput, ...]:
        if self._fails:
            raise LoadError("no room")
        work.frame.count()
        return (LoadOutput("nowhere", "", (), "delta"),)


class Dead(DeadLetters):
    """Dead letters that need no Spark: what is written is none of their business here."""

    def check(self, work: Work) -> None:
        pass

    def write(self, work: Work) -> tuple[LoadOutput, ...]:
        return (LoadOutput("nowhere", "dead", (), "parquet"),)


def within(block: Load, *steps: Callable[[Load], object]) -> None:
    with block:
        for step in steps:
            step(block)


def read(block: Load) -> None:
    assert block.df.count() == 15


def read_one_of_two_ranges(block: Load) -> None:
    assert block.df.count(tasks=1) == 10  # type: ignore[call-arg]


def write_dead_letters(block: Load) -> None:
    block.write(Dead(block.ledger, "reason", None))


def fail_to_write(block: Load) -> None:
    with pytest.raises(LoadError, match="no room"):
        block.write(Place(fails=True))


def find_written(block: Load) -> None:
    block.write(Place(found=True))


def assert_kept(loads: Loads, left: Load) -> None:
    """Nothing was committed, and the next load has the same plan."""
    assert (left.commit, left.last_commit, loads.ledger.head()) == (None, None, None)
    assert loads.ledger.pending() == left.plan is not None
    with loads.load() as again:
        again.keep()
    assert again.plan == left.plan


def test_a_count_alone_is_an_error_that_says_what_to_call_and_commits_nothing(loads: Loads) -> None:
    left = loads.load()
    with pytest.raises(LoadError, match=NOT_COMMITTED):
        within(left, read)
    assert_kept(loads, left)


def test_done_commits_what_the_user_wrote(loads: Loads) -> None:
    done = loads.run()
    assert done.commit is not None
    assert (done.commit.number, done.commit.mode, done.commit.records) == (1, "job", 15)
    assert done.last_commit == loads.ledger.head() == done.commit


def test_done_does_not_commit_what_was_not_read_to_its_end(loads: Loads) -> None:
    left = loads.load()
    with pytest.raises(IncompleteLoad, match=r"1 of 2 ranges were not read in this run .*-1 \[0, 5\)"):
        within(left, read_one_of_two_ranges, Load.done)
    assert_kept(loads, left)


def test_without_receipts_done_is_all_that_a_commit_needs(loads: Loads) -> None:
    with pytest.raises(LoadError, match=NOT_COMMITTED):
        within(loads.load(receipts=False), read)
    with loads.load(receipts=False) as done:
        done.done()
    assert done.commit is not None
    assert (done.commit.number, done.commit.records) == (1, -1)


def test_dead_letters_alone_are_not_a_write(loads: Loads) -> None:
    left = loads.load()
    with pytest.raises(LoadError, match=r"its block wrote only dead letters"):
        within(left, read, write_dead_letters)
    assert_kept(loads, left)
    done = loads.load()
    within(done, write_dead_letters, read, Load.done)
    assert done.commit is not None
    assert (done.commit.mode, [out.directory for out in done.commit.outputs]) == ("job", ["dead"])


def test_a_write_that_failed_and_was_caught_does_not_count(loads: Loads) -> None:
    left = loads.load()
    with pytest.raises(LoadError, match=NOT_COMMITTED):
        within(left, read, fail_to_write)
    assert_kept(loads, left)


def test_a_write_needs_no_done_and_what_an_earlier_attempt_wrote_is_not_read_again(loads: Loads) -> None:
    with loads.load() as written:
        written.write(Place())
    assert written.commit is not None
    assert written.commit.mode == "sink"
    loads.topic.add(15)
    with loads.load() as died:
        died.write(Place())
        died.keep()
    found = loads.load()
    within(found, find_written)
    assert (found.number, found.commit and found.commit.mode) == (2, "sink")


def test_done_for_a_write_of_ones_own_beside_one_that_was_found_wants_it_read(loads: Loads) -> None:
    with pytest.raises(
        IncompleteLoad,
        match=r"had written everything, so load\.write_\*\(\) did not read load\.df: .* only if you",
    ):
        within(loads.load(), find_written, Load.done)
    done = loads.load()
    within(done, find_written, read, Load.done)
    assert done.commit is not None


@pytest.mark.parametrize("steps", [(read,), (read, Load.done), (find_written,)])
def test_keep_ends_the_block_without_error_or_commit(loads: Loads, steps: Any) -> None:
    left = loads.load()
    within(left, *steps, Load.keep)
    assert_kept(loads, left)


@pytest.mark.parametrize("steps", [(read,), (read, Load.done)])
def test_an_exception_passes_through_the_block_as_it_is(loads: Loads, steps: Any) -> None:
    mistake = ZeroDivisionError("of the user")
    left = loads.load()

    def fail(_: Load) -> None:
        raise mistake

    with pytest.raises(ZeroDivisionError) as raised:
        within(left, *steps, fail)
    assert raised.value is mistake
    assert raised.value.__context__ is None
    assert_kept(loads, left)


def test_with_nothing_new_no_call_is_needed_and_the_last_commit_is_the_one_before(loads: Loads) -> None:
    first = loads.run()
    nothing = loads.load()
    within(nothing)
    for empty in (nothing, loads.run()):
        assert (empty.is_empty, empty.commit, empty.last_commit) == (True, None, first.commit)
    assert loads.ledger.head_number() == 1


def test_done_is_said_inside_the_block(loads: Loads) -> None:
    early = loads.load()
    with pytest.raises(LoadError, match=r"call done\(\) inside the with block"):
        early.done()
    late = loads.run()
    with pytest.raises(LoadError, match=r"call done\(\) inside the with block"):
        late.done()
