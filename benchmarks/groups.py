"""What do consumer groups cost the broker, and how long does a rebalance of many members take?

* 1,000 members in 100 groups, each with a connection of its own, heartbeat every 3 s and commit one offset
  every 5 s: the processor time of the broker while that goes on, beside Apache Kafka's for the same.
* 100 members of one group rebalance: from the last join's request to the last member's assignment. The
  clients' own time is in it, and the same for both.

How long committed offsets take to load is measured in `cleaner`.

The members are our own and do as little as a client can: one thread serves all of them. Both brokers run, and
are asked in turn; while one is, the members of the other are silent, for less than their session.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.broker import processor_seconds
from benchmarks.broker_and_kafka import KAFKA, PEER, Served, both
from benchmarks.harness import Row, cost, in_turn
from benchmarks.raw_client import RawClient, connected, encode
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api import group_offsets, groups
from pyspark_kafkalog.protocol.api.metadata import FindCoordinatorRequest
from pyspark_kafkalog.protocol.exchange import ApiKey, decode_response
from tests.support.foreign.apache_kafka import fetch

GROUPS, MEMBERS_EACH = 100, 10
HEARTBEAT_SECONDS, COMMIT_SECONDS = 3.0, 5.0
WINDOW_SECONDS = 6.0
PROCESSOR_GOAL, REBALANCE_GOAL_MS = 20.0, 1000.0
_MANY = 100
_TOPIC, _PARTITIONS = "read-by-groups", 10
_SESSION_MS = 120_000
_TIMEOUT_SECONDS = 60.0
_SUBSCRIPTION = bytes.fromhex("0000 00000001 000e") + _TOPIC.encode()
_ASSIGNMENT = _SUBSCRIPTION + bytes.fromhex("00000001 00000000 ffffffff")
_NOT_YET = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
"""Apache Kafka, while the topic of its groups is made."""

_VERSIONS = {
    ApiKey.JOIN_GROUP: 5, ApiKey.SYNC_GROUP: 3, ApiKey.HEARTBEAT: 3, ApiKey.OFFSET_COMMIT: 7,
}  # fmt: skip


def run(rounds: int = 5) -> list[Row]:
    """All rows of this question; two to four minutes with five rounds."""
    with both(fetch(KAFKA)) as brokers:
        for broker in brokers.values():
            with RawClient(broker.port) as client:
                client.create_topic(_TOPIC, _PARTITIONS)
                client.call(FindCoordinatorRequest(key="has the topic of groups made"), 1)
        return [*_steady(brokers, rounds), *_rebalance(brokers, rounds)]


def _steady(brokers: Mapping[str, Served], rounds: int) -> Iterator[Row]:
    def percent(crowd: Crowd, pid: int) -> float:
        before, began = processor_seconds(pid), time.monotonic()
        crowd.live(WINDOW_SECONDS)
        return 100 * (processor_seconds(pid) - before) / (time.monotonic() - began)

    crowds = {name: Crowd(broker.port) for name, broker in brokers.items()}
    for crowd in crowds.values():
        for number in range(GROUPS):
            crowd.enter(f"steady-{number}", MEMBERS_EACH)
        crowd.settle()
    calls = {name: partial(percent, crowd, brokers[name].pid) for name, crowd in crowds.items()}
    ours, peer = (one.median for one in in_turn(calls, rounds).values())
    for crowd in crowds.values():
        crowd.close()
    question = f"{GROUPS * MEMBERS_EACH:,} members in {GROUPS} groups heartbeat and commit: one processor"
    yield cost(question, ours, PROCESSOR_GOAL, "%", 1.0)
    yield cost(question, ours, peer, "%", note=f"peer: {PEER}")


def _rebalance(brokers: Mapping[str, Served], rounds: int) -> Iterator[Row]:
    crowds = {name: Crowd(broker.port) for name, broker in brokers.items()}
    for crowd in crowds.values():
        crowd.enter("rebalances", _MANY)
        crowd.settle()
    measured = in_turn({name: crowd.rebalance for name, crowd in crowds.items()}, rounds)
    for crowd in crowds.values():
        crowd.close()
    ours, peer = (1000 * one.median for one in measured.values())
    question = f"a rebalance of {_MANY} members, from the last join on"
    yield cost(question, ours, REBALANCE_GOAL_MS, "ms", 1.0)
    yield cost(question, ours, peer, "ms", note=f"peer: {PEER}")


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
    held_back: bool = False  # it is to join again, but not yet


class Crowd:
    """*Not thread-safe.* Members of groups at one broker."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._members: list[_Member] = []

    def enter(self, group: str, count: int) -> None:
        for _ in range(count):
            member = _Member(connected(self._port), group)
            self._selector.register(member.sock, selectors.EVENT_READ, member)
            self._members.append(member)
            self._join(member)

    def settle(self) -> None:
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
        commit = key is ApiKey.OFFSET_COMMIT
        code = (answer.topics[0].partitions[0] if commit else answer).error_code
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
            given = tuple(groups.SyncGroupRequestAssignment(m.member_id, _ASSIGNMENT) for m in answer.members)
            request = groups.SyncGroupRequest(
                member.group, member.generation, member.member_id, assignments=given
            )
            self._send(member, ApiKey.SYNC_GROUP, request)
        elif key is ApiKey.SYNC_GROUP:
            member.ready = True

    def _join(self, member: _Member) -> None:
        member.ready = False
        metadata = _SUBSCRIPTION + struct.pack(">ii", 4, member.changes)
        request = groups.JoinGroupRequest(
            group_id=member.group,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_SESSION_MS,
            member_id=member.member_id,
            protocol_type="consumer",
            protocols=(groups.JoinGroupRequestProtocol("range", metadata),),
        )
        self._send(member, ApiKey.JOIN_GROUP, request)

    def _heartbeat(self, member: _Member) -> None:
        request = groups.HeartbeatRequest(member.group, member.generation, member.member_id)
        self._send(member, ApiKey.HEARTBEAT, request)

    def _commit(self, member: _Member) -> None:
        partition = group_offsets.OffsetCommitRequestPartition(0, 12345)
        request = group_offsets.OffsetCommitRequest(
            group_id=member.group,
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            topics=(group_offsets.OffsetCommitRequestTopic(_TOPIC, (partition,)),),
        )
        self._send(member, ApiKey.OFFSET_COMMIT, request)

    def _send(self, member: _Member, key: ApiKey, request: Any) -> None:
        member.under_way = key
        member.sock.sendall(encode(request, _VERSIONS[key]))
