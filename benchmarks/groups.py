"""What do consumer groups cost the broker, and how long does a rebalance of many members take?

* 1,000 members in 100 groups, each with a connection of its own, heartbeat every 3 s and commit one offset
  every 5 s: the processor time of the broker while that goes on, beside Apache Kafka's for the same.
* 100 members of one group rebalance: from the last join's request to the last member's assignment. The
  clients' own time is in it, and the same for both.
* The offsets topic of a million commits to 50,000 keys is loaded: the goal is a limit.

The members are our own and do as little as a client can: one thread serves all of them. Both brokers run, and
are asked in turn; while one is, the members of the other are silent, for less than their session.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from benchmarks.broker import scratch
from benchmarks.broker_and_kafka import KAFKA, OURS, PEER, both
from benchmarks.harness import Row
from benchmarks.raw_client import RawClient, encode
from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.groups.consumer_group import ConsumerGroupSettings
from kafkalog_broker.groups.group import GroupTopic
from kafkalog_broker.groups.group_coordinator import GroupCoordinator, GroupSettings
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import (
    OFFSETS_TOPIC,
    CommittedOffset,
    OffsetKey,
    encode_key,
    encode_value,
)
from kafkalog_broker.scheduler import Scheduler
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.formats.batch import encode_batch
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pyspark_kafkalog.protocol.api.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from pyspark_kafkalog.protocol.api.metadata import FindCoordinatorRequest
from pyspark_kafkalog.protocol.exchange import ApiKey, decode_response
from pyspark_kafkalog.types import NewRecord, TopicPartition
from tests.support.foreign.apache_kafka import fetch

GROUPS, MEMBERS_EACH = 100, 10
HEARTBEAT_SECONDS, COMMIT_SECONDS = 3.0, 5.0
WINDOW_SECONDS = 6.0
PROCESSOR_GOAL, REBALANCE_GOAL_SECONDS = 20.0, 1.0
COMMITS, KEYS, LOAD_GOAL_SECONDS = 1_000_000, 50_000, 15.0
_MANY = 100
_TOPIC, _PARTITIONS = "read-by-groups", 10
_SESSION_MS = 120_000
_TIMEOUT_SECONDS = 60.0
_ASSIGNMENT = (
    bytes.fromhex("0000 00000001 000e") + _TOPIC.encode() + bytes.fromhex("00000001 00000000 ffffffff")
)
_NOT_YET = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
"""Apache Kafka, while the topic of its groups is made."""

_VERSIONS = {
    ApiKey.JOIN_GROUP: 5, ApiKey.SYNC_GROUP: 3, ApiKey.HEARTBEAT: 3, ApiKey.OFFSET_COMMIT: 7,
}  # fmt: skip


def run(rounds: int = 5) -> list[Row]:
    """All rows of this question; three to five minutes with five rounds."""
    with tempfile.TemporaryDirectory() as name, both(fetch(KAFKA), Path(name)) as brokers:
        ports = {each: int(broker.servers.rpartition(":")[2]) for each, broker in brokers.items()}
        pids = {each: broker.pid for each, broker in brokers.items()}
        for port in ports.values():
            client = RawClient(port)
            client.create_topic(_TOPIC, _PARTITIONS)
            client.call(FindCoordinatorRequest(key="has the topic of groups made"), 1)
            client.close()
        rows = [*_steady(ports, pids, rounds), *_rebalance(ports, rounds)]
    return [*rows, _load()]


def _steady(ports: dict[str, int], pids: dict[str, int], rounds: int) -> Iterator[Row]:
    percent: dict[str, list[float]] = {name: [] for name in ports}
    crowds = {name: Crowd(port) for name, port in ports.items()}
    for crowd in crowds.values():
        for number in range(GROUPS):
            crowd.enter(f"steady-{number}", MEMBERS_EACH)
        crowd.settle()
    for number in range(1 + rounds):
        for name, crowd in crowds.items():
            before, began = _processor(pids[name]), time.monotonic()
            crowd.live(WINDOW_SECONDS)
            spent, took = _processor(pids[name]) - before, time.monotonic() - began
            if number:
                percent[name].append(100 * spent / took)
    for crowd in crowds.values():
        crowd.close()
    ours, peer = (statistics.median(percent[name]) for name in (OURS, PEER))
    question = f"{GROUPS * MEMBERS_EACH:,} members in {GROUPS} groups heartbeat and commit"
    yield Row(
        f"{question}: one processor", ours, PROCESSOR_GOAL, PROCESSOR_GOAL / ours, 1.0, "%", "peer: the limit"
    )
    yield Row(f"{question}: one processor", ours, peer, peer / ours, None, "%", f"peer: {PEER}")


def _rebalance(ports: dict[str, int], rounds: int) -> Iterator[Row]:
    seconds: dict[str, list[float]] = {name: [] for name in ports}
    crowds = {name: Crowd(port) for name, port in ports.items()}
    for crowd in crowds.values():
        crowd.enter("rebalances", _MANY)
        crowd.settle()
    for number in range(1 + rounds):
        for name, crowd in crowds.items():
            took = crowd.rebalance()
            if number:
                seconds[name].append(took)
    for crowd in crowds.values():
        crowd.close()
    ours, peer = (statistics.median(seconds[name]) for name in (OURS, PEER))
    question = f"a rebalance of {_MANY} members, from the last join on"
    limit = REBALANCE_GOAL_SECONDS
    yield Row(question, 1000 * ours, 1000 * limit, limit / ours, 1.0, "ms", "peer: the limit")
    yield Row(question, 1000 * ours, 1000 * peer, peer / ours, None, "ms", f"peer: {PEER}")


def _processor(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


# --- members


@dataclass(eq=False)
class _Member:
    """One connection, with one request under way at most; ``ready``: it has its assignment."""

    sock: socket.socket
    group: str
    member_id: str = ""
    generation: int = -1
    ready: bool = False
    under_way: ApiKey | None = None
    buffer: bytearray = field(default_factory=bytearray)
    changes: int = 0
    held_back: bool = False
    """It is to join again, but not yet."""


class Crowd:
    """*Not thread-safe.* Members of groups at one broker."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._members: list[_Member] = []

    def enter(self, group: str, count: int) -> None:
        """So many members connect, and ask to join."""
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", self._port), timeout=_TIMEOUT_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            member = _Member(sock, group)
            self._selector.register(sock, selectors.EVENT_READ, member)
            self._members.append(member)
            self._join(member)

    def settle(self) -> None:
        """Until all have their assignments."""
        while not all(member.ready for member in self._members):
            for member in self._members:
                if member.ready and member.under_way is None:
                    self._heartbeat(member)
            self._until(lambda: False, 0.2)

    def live(self, seconds: float) -> None:
        """All heartbeat and commit, evenly over the time."""
        began = time.monotonic()
        count = len(self._members)
        events: list[tuple[float, int, Callable[[_Member], None], float]] = []
        for number in range(count):
            share = number / count
            events.append((share * HEARTBEAT_SECONDS, number, self._heartbeat, HEARTBEAT_SECONDS))
            events.append((share * COMMIT_SECONDS + 0.01, count + number, self._commit, COMMIT_SECONDS))
        heapq.heapify(events)
        while events[0][0] < seconds:
            due, number, send, period = heapq.heappop(events)
            self._until(lambda: False, began + due - time.monotonic())
            member = self._members[number % count]
            self._until(lambda m=member: m.under_way is None, _TIMEOUT_SECONDS)
            send(member)
            heapq.heappush(events, (due + period, number, send, period))
        self._until(lambda: all(m.under_way is None for m in self._members), _TIMEOUT_SECONDS)
        if not all(member.ready for member in self._members):
            raise RuntimeError("a member had to join again")

    def rebalance(self) -> float:
        """Seconds from the last join until all have their assignments again."""
        last = self._members[-1]
        last.held_back = True
        self._members[0].changes += 1
        self._join(self._members[0])
        while not all(member.under_way is ApiKey.JOIN_GROUP for member in self._members[:-1]):
            for member in self._members[1:]:
                if member.ready and member.under_way is None:
                    self._heartbeat(member)
            self._until(lambda: False, 0.05)
        self._until(lambda: last.under_way is None, _TIMEOUT_SECONDS)
        time.sleep(0.2)
        last.held_back = False
        began = time.perf_counter()
        self._join(last)
        self._until(lambda: all(m.ready for m in self._members), _TIMEOUT_SECONDS)
        return time.perf_counter() - began

    def close(self) -> None:
        """All connections end."""
        for member in self._members:
            member.sock.close()
        self._selector.close()

    def _until(self, done: Callable[[], bool], seconds: float) -> None:
        """Take answers until ``done``, or for so long."""
        end = time.monotonic() + seconds
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                return
            for key, _ in self._selector.select(left):
                self._receive(key.data)

    def _receive(self, member: _Member) -> None:
        data = member.sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection")
        member.buffer += data
        size = int.from_bytes(member.buffer[:4], "big")
        if len(member.buffer) < 4 + size or member.under_way is None:
            return
        key, member.under_way = member.under_way, None
        _, answer = decode_response(key, _VERSIONS[key], bytes(member.buffer[4 : 4 + size]))
        del member.buffer[: 4 + size]
        self._take(member, key, answer)

    def _take(self, member: _Member, key: ApiKey, answer: Any) -> None:
        if key is ApiKey.OFFSET_COMMIT:
            code = answer.topics[0].partitions[0].error_code
        else:
            code = answer.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = answer.member_id
            self._join(member)
        elif code in _NOT_YET:
            self._join(member)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            member.ready = False
            if not member.held_back:
                self._join(member)
        elif code != ErrorCode.NONE:
            raise RuntimeError(f"{key.name} of {member.group}: {code!r}")
        elif key is ApiKey.JOIN_GROUP:
            member.member_id, member.generation = answer.member_id, answer.generation_id
            given = tuple(SyncGroupRequestAssignment(m.member_id, _ASSIGNMENT) for m in answer.members)
            self._send(
                member,
                ApiKey.SYNC_GROUP,
                SyncGroupRequest(member.group, member.generation, member.member_id, assignments=given),
            )
        elif key is ApiKey.SYNC_GROUP:
            member.ready = True

    def _join(self, member: _Member) -> None:
        member.ready = False
        metadata = bytes.fromhex("0000 00000001 000e") + _TOPIC.encode() + _user_data(member.changes)
        self._send(
            member,
            ApiKey.JOIN_GROUP,
            JoinGroupRequest(
                group_id=member.group,
                session_timeout_ms=_SESSION_MS,
                rebalance_timeout_ms=_SESSION_MS,
                member_id=member.member_id,
                protocol_type="consumer",
                protocols=(JoinGroupRequestProtocol("range", metadata),),
            ),
        )

    def _heartbeat(self, member: _Member) -> None:
        request = HeartbeatRequest(member.group, member.generation, member.member_id)
        self._send(member, ApiKey.HEARTBEAT, request)

    def _commit(self, member: _Member) -> None:
        partition = OffsetCommitRequestPartition(0, 12345)
        self._send(
            member,
            ApiKey.OFFSET_COMMIT,
            OffsetCommitRequest(
                group_id=member.group,
                generation_id_or_member_epoch=member.generation,
                member_id=member.member_id,
                topics=(OffsetCommitRequestTopic(_TOPIC, (partition,)),),
            ),
        )

    def _send(self, member: _Member, key: ApiKey, request: Any) -> None:
        member.under_way = key
        member.sock.sendall(encode(request, _VERSIONS[key]))


def _user_data(number: int) -> bytes:
    return struct.pack(">ii", 4, number)


# --- the load


def _load() -> Row:
    """Loading is the same work each time: three starts, and their median."""
    with scratch() as directory, _offsets_topic(directory) as logs:
        took = []
        for _ in range(3):
            coordinator = GroupCoordinator(
                GroupTopic(logs, create=lambda: 1, appended=lambda *_: None),
                SYSTEM_CLOCK,
                Scheduler(),
                GroupSettings(
                    min_session_timeout_ms=1,
                    max_session_timeout_ms=1,
                    initial_rebalance_delay_ms=0,
                    max_size=1,
                    offsets_retention_ms=1,
                ),
                ConsumerGroupSettings(),
                topics=logs.topics,
            )
            coordinator.look()
            began = time.perf_counter()
            coordinator.load()
            took.append(time.perf_counter() - began)
            stored = sum(len(coordinator.offsets.fetch(f"group-{n}")) for n in range(KEYS // _PARTITIONS))
            if stored != KEYS:
                raise RuntimeError(f"{stored} offsets were loaded")
    seconds = statistics.median(took)
    limit = LOAD_GOAL_SECONDS
    return Row(
        f"{COMMITS:,} commits to {KEYS:,} keys are loaded", seconds, limit, limit / seconds, 1.0, "s",
        "peer: the limit",
    )  # fmt: skip


@contextmanager
def _offsets_topic(directory: Path) -> Iterator[LogManager]:
    """One partition with a batch for each commit, as clients make them, by turns to all keys."""
    logs = LogManager([directory], defaults=LogConfig(), producer_expiration_ms=1 << 40)
    logs.start()
    try:
        logs.create_topic(OFFSETS_TOPIC, uuid4(), 1, {"cleanup.policy": "compact"})
        log = logs.log(TopicPartition(OFFSETS_TOPIC, 0))
        now_ms = SYSTEM_CLOCK.time_ms()
        for first in range(0, COMMITS, KEYS):
            data = bytearray()
            for number in range(KEYS):
                group, partition = divmod(number, _PARTITIONS)
                key = OffsetKey(f"group-{group}", TopicPartition(_TOPIC, partition))
                value = encode_value(CommittedOffset(first, 0, "", now_ms))
                data += encode_batch([NewRecord(value, encode_key(key), now_ms)])
            log.append(data, internal=True)
        yield logs
    finally:
        logs.close()
