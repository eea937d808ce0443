"""What `Consumer` must do in a group, whoever's broker coordinates it: tests for several brokers.

A broker has: no delay of the first rebalance, and in the newer protocol heartbeats each 200 ms. No session
ends by itself, however long a machine stands still: see `Seat.expire`.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from pyspark_kafkalog import Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition, create_topics
from pyspark_kafkalog.client.groups import CommittedOffset
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.errors import CommitFailed, InvalidConfig, InvalidRequest, NoOffset
from tests.support.protocol.raw_groups import remove_member

QUICK_GROUPS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": "60000",
    "group.consumer.heartbeat.interval.ms": "200",
}
"""The broker's properties."""

_numbers = itertools.count()
_SECONDS = 90.0


def new_topic(servers: str, partitions: int = 4, prefix: str = "c") -> str:
    """A topic of its own for each test."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}-{next(_numbers)}"
    create_topics(servers, [NewTopic(name, partitions, 1)])
    return name


def produce(servers: str, topic: str, count: int, partitions: int = 4, first: int = 0) -> list[bytes]:
    """So many records, to the partitions in turn."""
    values = [b"%d" % number for number in range(first, first + count)]
    with Producer({"bootstrap.servers": servers}) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % partitions)
    return values


class Seat:
    """A consumer, and what its callbacks were called with."""

    def __init__(self, servers: str, group: str, protocol: str, **properties: object) -> None:
        given: dict[str, object] = {
            "bootstrap.servers": servers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "fetch.max.wait.ms": 50,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        if protocol == "classic":
            given = {"session.timeout.ms": 90_000, "heartbeat.interval.ms": 100} | given
        self.consumer = Consumer(given)
        self.calls: list[tuple[str, list[int]]] = []
        self.got: list[ConsumerRecord] = []

    def subscribe(self, *topics: str, pattern: str | None = None) -> Seat:
        def note(what: str) -> Callable[[list[TopicPartition]], None]:
            return lambda partitions: self.calls.append((what, [tp.partition for tp in partitions]))

        self.consumer.subscribe(
            topics,
            pattern=pattern,
            on_assigned=note("assigned"),
            on_revoked=note("revoked"),
            on_lost=note("lost"),
        )
        return self

    @property
    def held(self) -> list[int]:
        return sorted(tp.partition for tp in self.consumer.assignment)

    @property
    def values(self) -> list[bytes]:
        return [record.value or b"" for record in self.got]

    def expire(self) -> None:
        """No heartbeat and no goodbye from now on, as if the process had been killed; its session ends."""
        assert self.consumer._group is not None
        member = self.consumer.member_id
        self.consumer._group.stop(Deadline.after(_SECONDS), leave=False)
        remove_member(self.consumer.config, member)


def drive(seats: list[Seat], until: Callable[[], bool]) -> None:
    """Let each consumer poll in turn until it is so."""
    end = time.monotonic() + _SECONDS
    while not until():
        assert time.monotonic() < end, [(seat.held, seat.calls, len(seat.got)) for seat in seats]
        for seat in seats:
            seat.got += seat.consumer.poll(0.02)
        if not seats:
            time.sleep(0.05)


class ConsumerCases:
    """To be inherited, with a fixture ``servers``."""

    @pytest.fixture(params=["classic", "consumer"])
    def protocol(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    @pytest.fixture
    def seat(self, servers: str, protocol: str) -> Iterator[Callable[..., Seat]]:
        group = f"g-{uuid.uuid4().hex[:8]}"
        with ExitStack() as closing:

            def make(**properties: object) -> Seat:
                made = Seat(servers, group, protocol, **properties)
                closing.callback(made.consumer.close)
                return made

            yield make

    def test_members_share_the_partitions_and_take_over_when_one_closes(
        self, servers: str, seat: Callable[..., Seat]
    ) -> None:
        topic = new_topic(servers)
        values = produce(servers, topic, 40)
        one, two = seat().subscribe(topic), seat().subscribe(topic)
        drive([one], lambda: len(one.got) == 40)
        assert sorted(one.values) == sorted(values)
        for number in range(4):
            assert [r.offset for r in one.got if r.partition == number] == list(range(10))
        drive([one, two], lambda: len(one.held) == len(two.held) == 2)
        assert sorted(one.held + two.held) == [0, 1, 2, 3]
        more = produce(servers, topic, 20, first=40)
        drive([one, two], lambda: len(one.got) + len(two.got) == 60)
        one.consumer.close()
        assert one.calls[-1][0] == "revoked"
        last = produce(servers, topic, 20, first=60)
        drive([two], lambda: two.held == [0, 1, 2, 3] and len(one.got) + len(two.got) == 80)
        # Nothing was read twice: what each gave up was committed before.
        assert sorted(one.values + two.values) == sorted(values + more + last)

    def test_what_a_killed_member_had_not_committed_is_read_again_by_the_next(
        self, servers: str, seat: Callable[..., Seat]
    ) -> None:
        topic = new_topic(servers, 1)
        produce(servers, topic, 10, 1)
        one = seat(enable_auto_commit=False).subscribe(topic)
        drive([one], lambda: len(one.got) == 10)
        one.consumer.commit({TopicPartition(topic, 0): CommittedOffset(7, -1, "so far")})
        one.expire()
        two = seat().subscribe(topic)
        drive([two], lambda: len(two.got) == 3)
        assert [r.offset for r in two.got] == [7, 8, 9]
        assert two.consumer.committed([(topic, 0)])[TopicPartition(topic, 0)].metadata == "so far"
        with pytest.raises(CommitFailed):
            one.consumer.commit()

    def test_commit_resume_and_positions(self, servers: str, seat: Callable[..., Seat]) -> None:
        topic = new_topic(servers, 2)
        produce(servers, topic, 20, 2)
        p0, p1 = TopicPartition(topic, 0), TopicPartition(topic, 1)
        one = seat(enable_auto_commit=False, max_poll_records=5).subscribe(topic)
        drive([one], lambda: len(one.got) >= 5)
        assert len(one.got) == 5
        first = one.got[0].topic_partition
        assert one.consumer.position(first) == 5
        one.consumer.commit()
        assert one.consumer.committed([p0, p1])[first].offset == 5
        one.consumer.seek(first, 2)
        one.consumer.pause([p1 if first == p0 else p0])
        one.got.clear()
        drive([one], lambda: len(one.got) == 8)
        assert [r.offset for r in one.got] == list(range(2, 10))
        assert one.consumer.poll(0.2) == []
        one.consumer.resume(one.consumer.paused)
        drive([one], lambda: len(one.got) == 18)
        one.consumer.seek_to_beginning([p0])
        one.consumer.seek_to_end([p1])
        assert (one.consumer.position(p0), one.consumer.position(p1)) == (0, 10)
        times = {p0: one.got[0].timestamp, p1: one.got[-1].timestamp + 3_600_000}
        found = one.consumer.offsets_for_times(times)
        assert found[p1] is None
        assert found[p0] is not None
        assert one.consumer.end_offsets([p0]) == {p0: 10}
        one.consumer.close()
        two = seat().subscribe(topic)
        drive([two], lambda: len(two.got) == 15)

    def test_a_loop_commits_the_records_that_it_has_been_through(
        self, servers: str, seat: Callable[..., Seat]
    ) -> None:
        topic = new_topic(servers, 1)
        produce(servers, topic, 10, 1)
        one = seat().subscribe(topic)
        for record in one.consumer:
            if record.offset == 6:
                break
        assert one.consumer.position(TopicPartition(topic, 0)) == 7
        one.consumer.close()
        two = seat().subscribe(topic)
        drive([two], lambda: len(two.got) == 3)

    def test_a_pattern_takes_in_topics_that_are_made_later(
        self, servers: str, seat: Callable[..., Seat]
    ) -> None:
        prefix = f"p{uuid.uuid4().hex[:8]}"
        topic = new_topic(servers, 1, prefix)
        produce(servers, topic, 1, 1)
        one = seat(metadata_max_age_ms=200).subscribe(pattern=f"{prefix}-.*")
        drive([one], lambda: len(one.got) == 1)
        other = new_topic(servers, 1, prefix)
        produce(servers, other, 1, 1)
        drive([one], lambda: len(one.got) == 2)
        assert {r.topic for r in one.got} == {topic, other}

    def test_a_static_member_comes_back_without_a_rebalance(
        self, servers: str, seat: Callable[..., Seat]
    ) -> None:
        topic = new_topic(servers)
        one = seat(group_instance_id="one").subscribe(topic)
        two = seat(group_instance_id="two").subscribe(topic)
        drive([one, two], lambda: len(one.held) == len(two.held) == 2)
        drive([one, two], lambda: True)
        before, calls = one.held, list(two.calls)
        one.consumer.close()
        again = seat(group_instance_id="one").subscribe(topic)
        drive([two, again], lambda: again.held == before)
        assert two.calls == calls

    def test_a_consumer_that_does_not_poll_loses_its_partitions_and_joins_again(
        self, servers: str, seat: Callable[..., Seat]
    ) -> None:
        topic = new_topic(servers, 2)
        produce(servers, topic, 4, 2)
        one = seat(max_poll_interval_ms=500, enable_auto_commit=False).subscribe(topic)
        # What it has read it reads again where this process stands still for so long.
        drive([one], lambda: {(r.partition, r.offset) for r in one.got} == {(0, 0), (0, 1), (1, 0), (1, 1)})
        two = seat().subscribe(topic)
        # It keeps its session alive all the time: only that it does not poll gives it away.
        drive([two], lambda: two.held == [0, 1] and len(two.got) == 4)
        with pytest.raises(CommitFailed):
            one.consumer.commit()
        drive([one, two], lambda: len(one.held) == len(two.held) == 1)
        assert ("lost", [0, 1]) in one.calls

    def test_chosen_partitions_without_a_subscription(self, servers: str, seat: Callable[..., Seat]) -> None:
        topic = new_topic(servers, 2)
        produce(servers, topic, 10, 2)
        one = seat()
        one.consumer.assign([TopicPartition(topic, 1)])
        drive([one], lambda: len(one.got) == 5)
        assert {r.partition for r in one.got} == {1}
        one.consumer.commit()
        with pytest.raises(InvalidRequest, match="not assigned"):
            one.consumer.seek(TopicPartition(topic, 0), 1)
        with pytest.raises(InvalidRequest, match="unsubscribe"):
            one.consumer.subscribe(topic)
        one.consumer.unsubscribe()
        two = seat(auto_offset_reset="none")
        two.consumer.assign([TopicPartition(topic, 1)])
        assert two.consumer.position(TopicPartition(topic, 1)) == 5
        two.consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(NoOffset, match=r"auto\.offset\.reset"):
            two.consumer.poll(_SECONDS)
        alone = Consumer({"bootstrap.servers": servers})
        with pytest.raises(InvalidConfig, match=r"group\.id"):
            alone.subscribe(topic)
        alone.assign([TopicPartition(topic, 0)])
        alone.seek(TopicPartition(topic, 0), 4)
        assert [r.offset for r in alone.poll(_SECONDS)] == [4]
        alone.close()

    @pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
    def test_each_strategy_of_a_classic_group(self, servers: str, strategy: str) -> None:
        topic, group = new_topic(servers), f"g-{uuid.uuid4().hex[:8]}"
        seats = [Seat(servers, group, "classic", partition_assignment_strategy=strategy) for _ in range(3)]
        try:
            for count in (1, 2, 3):
                seats[count - 1].subscribe(topic)
                now = seats[:count]
                drive(now, lambda now=now: self._even(now))  # type: ignore[misc]
            revoked = [
                number for seat in seats for what, held in seat.calls if what == "revoked" for number in held
            ]
            # One partition of four moves for the third member, and two for the second.
            assert len(revoked) == (3 if strategy == "cooperative-sticky" else 8)
        finally:
            for seat in seats:
                seat.consumer.close()

    @staticmethod
    def _even(seats: list[Seat]) -> bool:
        sizes = [len(seat.held) for seat in seats]
        held = sorted(number for seat in seats for number in seat.held)
        return held == [0, 1, 2, 3] and max(sizes) - min(sizes) <= 1
