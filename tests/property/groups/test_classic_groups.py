"""Members that come, go, hang and crash, in any order, over brokers that stop and start again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.groups.classic_rules import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from kafkalog_broker.groups.consumer_group import ConsumerGroupSettings
from kafkalog_broker.groups.group import GroupTopic, NoSuchGroup
from kafkalog_broker.groups.group_coordinator import GroupCoordinator, GroupSettings
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC, CommittedOffset
from kafkalog_broker.scheduler import Scheduler
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.types import TopicPartition
from tests.support.examples import examples
from tests.support.manual_clock import ManualClock

_GROUP = "g"
_SESSION_MS = 10_000
_REBALANCE_MS = 20_000
_RANGE, _BOTH = (("range", b"r"),), (("sticky", b"s"), ("range", b"r"))

_clients = st.integers(0, 3)


@dataclass
class _Client:
    """What one client knows. ``waits`` is for the answer that it has not got yet."""

    instance_id: str | None
    names_first: bool
    protocols: tuple[tuple[str, bytes], ...] = _BOTH
    member_id: str = ""
    generation: int = -1
    led: tuple[str, ...] = ()
    synced: int = -1
    assignment: bytes | None = None
    waits: _Waiting | None = None


@dataclass(eq=False)
class _Waiting:
    client: _Client
    hang_up: Callable[[], None] = lambda: None
    answers: list[JoinAnswer | SyncAnswer] = field(default_factory=list)

    def __call__(self, answer: JoinAnswer | SyncAnswer) -> None:
        self.answers.append(answer)


class ClassicGroups(RuleBasedStateMachine):
    @initialize(delay_ms=st.sampled_from([0, 3000]))
    def start(self, delay_ms: int) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.logs = LogManager(
            [Path(self.directory.name)],
            defaults=LogConfig(segment_bytes=5000),
            clock=self.clock,
            producer_expiration_ms=1000,
        )
        self.logs.start()
        self.settings = GroupSettings(
            min_session_timeout_ms=1000,
            max_session_timeout_ms=60_000,
            initial_rebalance_delay_ms=delay_ms,
            max_size=3,
            offsets_retention_ms=1 << 60,
        )
        self.clients = [
            _Client(None, names_first=True),
            _Client(None, names_first=True, protocols=_RANGE),
            _Client(None, names_first=False),
            _Client("static", names_first=True),
        ]
        self.open: list[_Waiting] = []
        self.generation = -1
        self.committed: dict[TopicPartition, int] = {}
        self.lives_until: dict[str, float] = {}
        self.number = 0
        self.begin()

    def begin(self) -> None:
        self.timer = Scheduler(self.clock)
        self.coordinator = GroupCoordinator(
            GroupTopic(self.logs, create=self.create, appended=lambda *_: None),
            self.clock,
            self.timer,
            self.settings,
            ConsumerGroupSettings(),
            topics=lambda: self.logs.topics,
        )
        self.coordinator.look()
        self.coordinator.load()

    def create(self) -> int:
        self.logs.create_topic(OFFSETS_TOPIC, uuid4(), 1, {"cleanup.policy": "compact"})
        return 1

    def teardown(self) -> None:
        if not hasattr(self, "logs"):
            return
        try:
            for _ in range(5):
                self.advance(400)
            assert self.open == []  # by the last timer at the latest
        finally:
            self.logs.close()
            self.directory.cleanup()

    # What clients do.

    @rule(n=_clients, forgets=st.booleans())
    def join(self, n: int, forgets: bool) -> None:
        client = self.clients[n]
        if client.waits is not None:
            return
        if forgets and (client.instance_id is not None or client.generation < 0):
            client.member_id = ""
        self.number += 1
        request = JoinRequest(
            member_id=client.member_id,
            new_id=f"m{self.number}",
            instance_id=client.instance_id,
            client_id="c",
            client_host="/h",
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            protocol_type="consumer",
            protocols=client.protocols,
            names_first=client.names_first,
            can_skip=False,
        )
        client.waits = waiting = _Waiting(client)
        self.open.append(waiting)
        try:
            waiting.hang_up = self.coordinator.join(_GROUP, request, waiting)
        except KafkaError as e:
            waiting(JoinAnswer(e.code, ""))
        if client.member_id:
            self.lives_until.pop(client.member_id, None)  # it waits: until it is answered
        self.hear()

    @rule(n=_clients)
    def sync(self, n: int) -> None:
        client = self.clients[n]
        if client.waits is not None or client.generation < 0:
            return
        given = {m: f"{m} in {client.generation}".encode() for m in client.led}
        request = SyncRequest(client.member_id, client.instance_id, client.generation, None, None, given)
        client.waits = waiting = _Waiting(client)
        self.open.append(waiting)
        try:
            self.coordinator.sync(_GROUP, request, waiting)
        except KafkaError as e:
            waiting(SyncAnswer(e.code))
        self.hear()

    @rule(n=_clients)
    def heartbeat(self, n: int) -> None:
        client = self.clients[n]
        if client.waits is not None or client.generation < 0:
            return
        try:
            code = self.coordinator.heartbeat(_GROUP, client.member_id, client.instance_id, client.generation)
        except KafkaError as e:
            code = e.code
        self.told(client, code)
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.lives_until[client.member_id] = self.clock.monotonic() + _SESSION_MS / 1000

    @rule(n=_clients)
    def leave(self, n: int) -> None:
        client = self.clients[n]
        if client.waits is not None or not client.member_id:
            return
        self.lives_until.pop(client.member_id, None)
        with suppress(KafkaError):
            self.coordinator.leave(_GROUP, [(client.member_id, client.instance_id)])
        client.member_id, client.generation = "", -1
        self.hear()

    @rule(n=_clients)
    def crash(self, n: int) -> None:
        """Its connection ends too; a dynamic member comes back under another name."""
        client = self.clients[n]
        if client.waits is not None:
            self.open.remove(client.waits)
            client.waits.hang_up()
            client.waits = None
            self.hear()
        self.lives_until.pop(client.member_id, None)
        client.member_id, client.generation = "", -1

    @rule(n=_clients, partition=st.integers(0, 2))
    def commit(self, n: int, partition: int) -> None:
        client = self.clients[n]
        if client.waits is None and client.generation >= 0:
            self.try_commit(client, partition)

    @rule(partition=st.integers(0, 2))
    def commit_from_outside(self, partition: int) -> None:
        self.try_commit(None, partition)

    def try_commit(self, client: _Client | None, partition: int) -> None:
        self.number += 1
        where = TopicPartition("t", partition)
        offsets = {where: CommittedOffset(self.number, commit_timestamp_ms=self.clock.time_ms())}
        try:
            if client is None:
                self.coordinator.offsets.commit(_GROUP, offsets)
            else:
                self.coordinator.offsets.commit(
                    _GROUP,
                    offsets,
                    member_id=client.member_id,
                    instance_id=client.instance_id,
                    generation=client.generation,
                )
        except KafkaError as e:
            if client is not None:
                self.told(client, e.code)
            return
        self.committed[where] = self.number

    # What happens to the broker.

    @rule(seconds=st.sampled_from([1, 4, 9, 15, 21]))
    def advance(self, seconds: float) -> None:
        before, state = self.members(), self.state()
        for _ in range(4):
            self.clock.advance(seconds / 4)
            self.timer.run_due()
            now = self.clock.monotonic()
            for member_id in before - self.members():
                # It has asked in time: then only a rebalance that it does not take part in removes it.
                if now < self.lives_until.get(member_id, 0.0):
                    assert state == "PreparingRebalance" or self.unsynced(member_id)
            before, state = self.members(), self.state()
        self.hear()

    @rule()
    def restart(self) -> None:
        """The broker stops, or is killed: the records are the same."""
        described = None if self.state() is None else self.coordinator.describe(_GROUP)
        self.coordinator.close()
        self.hear()
        self.lives_until.clear()
        if described is not None and described.state not in ("Stable", "Empty"):
            self.generation = -1  # one that has no assignments yet is not stored
        self.begin()
        if described is None or described.state == "Empty":
            assert self.members() == set()
        elif described.state == "Stable":
            assert self.coordinator.describe(_GROUP) == described

    @rule()
    def delete(self) -> None:
        if self.state() != "Empty":
            with pytest.raises(KafkaError):
                self.coordinator.delete(_GROUP)
            return
        self.coordinator.delete(_GROUP)
        self.committed.clear()
        self.generation = -1
        assert self.state() is None

    # What is always so.

    @invariant()
    def a_commit_answered_with_0_is_fetched(self) -> None:
        if hasattr(self, "coordinator"):
            stored = self.coordinator.offsets.fetch(_GROUP)
            assert {p: v.offset for p, v in stored.items()} == self.committed

    @invariant()
    def a_stable_group_has_assignments_of_its_leader(self) -> None:
        if hasattr(self, "coordinator") and self.state() == "Stable":
            for client in self.clients:
                if client.synced == self.generation and client.assignment is not None:
                    assert client.assignment.endswith(b" in %d" % client.synced)

    def state(self) -> str | None:
        try:
            return self.coordinator.describe(_GROUP).state
        except NoSuchGroup:
            return None

    def members(self) -> set[str]:
        try:
            return {member.member_id for member in self.coordinator.describe(_GROUP).members}
        except NoSuchGroup:
            return set()

    def unsynced(self, member_id: str) -> bool:
        return all(c.member_id != member_id or c.synced < c.generation for c in self.clients)

    def told(self, client: _Client, code: ErrorCode) -> None:
        """As clients do: begin anew without a name, or join again."""
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id, client.generation = "", -1
        elif code is ErrorCode.ILLEGAL_GENERATION:
            client.generation = -1

    def hear(self) -> None:
        """Each request has one answer."""
        for waiting in list(self.open):
            if not waiting.answers:
                continue
            (answer,) = waiting.answers
            self.open.remove(waiting)
            client = waiting.client
            client.waits = None
            if isinstance(answer, JoinAnswer):
                self.joined(client, answer)
            elif answer.error is ErrorCode.NONE:
                client.synced, client.assignment = client.generation, answer.assignment
                self.lives_until[client.member_id] = self.clock.monotonic() + _SESSION_MS / 1000
            else:
                self.told(client, answer.error)

    def joined(self, client: _Client, answer: JoinAnswer) -> None:
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif answer.error is ErrorCode.NONE:
            assert answer.generation >= self.generation >= -1
            self.generation = client.generation = answer.generation
            client.member_id = answer.member_id
            client.led = tuple(m.member_id for m in answer.members)
            assert (answer.leader == answer.member_id) == bool(answer.members)
            assert answer.protocol in dict(client.protocols)
            self.lives_until[client.member_id] = self.clock.monotonic() + _SESSION_MS / 1000
        else:
            self.told(client, answer.error)


ClassicGroups.TestCase.settings = examples(100, stateful_step_count=50)
TestClassicGroups = ClassicGroups.TestCase
