"""Migrates a standalone broker's group offsets into the cluster it joins. They are committed once, through
the cluster's coordinators; an offset the group already has there is newer and stays.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, starmap
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from kafkalog_broker.cluster.ownership import Ownership
from kafkalog_broker.cluster.peers import Peers, by_topic
from kafkalog_broker.disk.filesystem import FileSystem, read_file, replace_file
from kafkalog_broker.groups.committed_offsets import GroupOffsets, decoded_offsets
from kafkalog_broker.logs.manager import LogManager
from kafkalog_broker.logs.offset_records import OFFSETS_TOPIC, CommittedOffset
from kafkalog_broker.logs.state_topic import read_stored
from pyspark_kafkalog.errors import (
    ConnectionLost,
    ErrorCode,
    KafkaError,
    ServerError,
    StorageError,
    error_for,
)
from pyspark_kafkalog.protocol.api import group_offsets as api
from pyspark_kafkalog.protocol.primitives import ZERO_UUID
from pyspark_kafkalog.types import TopicPartition
from pyspark_kafkalog.zookeeper.cluster_nodes import NOBODY

FILE_NAME = "brought.offsets"

_COMMIT_VERSION = 1
"""OffsetCommit version with a commit timestamp, from which an offset's age counts."""

_FETCH_VERSION = 7
_AT_ONCE = 100
"""Partitions per request; within brokers' limits even with the longest metadata."""

_ANSWER_SECONDS = 10.0
_AGAIN_SECONDS = 1.0
_STOP_SECONDS = 5.0

_REFUSED = frozenset({
    ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.INVALID_GROUP_ID,
})  # fmt: skip
"""Codes after which a retry cannot help. UNKNOWN_MEMBER_ID is not one: it ends when the members leave."""

_log = logging.getLogger(__name__)


_Offsets = Mapping[TopicPartition, CommittedOffset]
"""With the ids of their topics, because a topic of the same name may be another one."""


@dataclass(eq=False)
class OffsetMigration:
    """*Thread-safe: ``_left`` is replaced as a whole.* The offsets yet to commit, in a file that is synced
    before the log they come from is set aside. ``here`` has the offsets of the groups that this broker
    coordinates for the cluster.
    """

    directories: Sequence[Path]
    files: FileSystem
    logs: LogManager
    ownership: Ownership
    peers: Peers
    here: GroupOffsets
    _left: Mapping[str, _Offsets] = field(default_factory=dict, init=False)
    _untried: set[str] = field(default_factory=set, init=False)
    _counts: Counter[str] = field(default_factory=Counter, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _closed: threading.Event = field(default_factory=threading.Event, init=False)
    _waits: bool = field(default=False, init=False)

    @property
    def _paths(self) -> list[Path]:
        return [directory / FILE_NAME for directory in self.directories]

    def find(self) -> None:
        """Reads what an earlier run left. Raises `StorageError`."""
        for path in self._paths:
            try:
                data = read_file(self.files, path)
            except FileNotFoundError:
                continue
            except OSError as e:
                raise StorageError(f"{path}: {e}") from e
            self._take(_decode(data, path))

    def bring(self) -> None:
        """Saves this broker's own offsets, before its offsets topic is set aside. Raises `KafkaError`."""
        found: dict[str, dict[TopicPartition, CommittedOffset]] = defaultdict(dict)
        topics = self.logs.topics
        for number in topics[OFFSETS_TOPIC].partitions:
            keeper = TopicPartition(OFFSETS_TOPIC, number)
            for key, _, value in decoded_offsets(keeper, read_stored(self.logs.log(keeper)).last):
                topic = topics.get(key.partition.topic)
                if topic is None or value is None or value.topic_id not in (topic.topic_id, ZERO_UUID):
                    continue
                found[key.group][key.partition] = replace(value, topic_id=topic.topic_id)
        self._take(found)
        self._keep()
        _log.info("this broker brings the offsets of %d groups to its cluster", len(found))

    def go_on(self) -> None:
        is_on_it = self._thread is not None and self._thread.is_alive()
        if self._left and not is_on_it and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="brought-offsets", daemon=True)
            self._thread.start()

    def check_tried(self, group: str) -> None:
        """Clients wait for the first attempt: else a member would start where its own reset says."""
        if group in self._untried:
            raise ServerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the offsets of group {group!r} are being brought here"
            )

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _take(self, found: Mapping[str, _Offsets]) -> None:
        self._left = {**self._left, **found}
        self._untried = set(self._left)

    def _run(self) -> None:
        while self._left:
            try:
                self.try_once()
            except Exception:
                _log.exception("offsets that this broker brought to its cluster are not committed yet")
            if self._left and self._closed.wait(_AGAIN_SECONDS):
                return
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self._counts.items()) if count)
        _log.info("offsets that this broker brought are with the cluster's coordinators: %s", counts)

    def try_once(self) -> None:
        left: dict[str, _Offsets] = {}
        silent: dict[int, KafkaError] = {NOBODY: ConnectionLost("no broker coordinates it now")}
        for group, offsets in self._left.items():
            if self._closed.is_set():
                left[group] = offsets
                continue
            coordinator = self.ownership.coordinator_of(OFFSETS_TOPIC, group)
            error = silent.get(coordinator)
            remaining = offsets
            if error is None:
                try:
                    remaining = self._moved(group, offsets, coordinator)
                except ConnectionLost as e:
                    error = silent[coordinator] = e
                except KafkaError as e:
                    error = e
            if remaining:
                left[group] = remaining
                self._log_wait(group, error)
            self._untried.discard(group)
        if left != self._left:
            self._left = left
            self._keep()

    def _moved(self, group: str, offsets: _Offsets, coordinator: int) -> _Offsets:
        """Commits a group's offsets where it has none; returns those to try again."""
        here, view = self.logs.topics, self.ownership.view
        left: dict[TopicPartition, CommittedOffset] = {}
        for part in _parts(offsets):
            wanted = {}
            for partition, brought in part.items():
                topic = here.get(partition.topic)
                there = None if view is None else view.topics.get(partition.topic)
                if topic is None or topic.topic_id != brought.topic_id:
                    self._counts["of topics that were deleted or set aside"] += 1
                elif there is None or there.stored.topic_id != brought.topic_id:
                    left[partition] = brought  # the topic has yet to be migrated or set aside
                else:
                    wanted[partition] = brought
            if not wanted:
                continue
            stored = self._stored(coordinator, group, wanted)
            missing = {each: wanted[each] for each, offset in stored.items() if offset < 0}
            self._counts["there already"] += len(stored) - len(missing)
            codes = self._committed(coordinator, group, missing) if missing else {}
            for partition, code in codes.items():
                if code in _REFUSED:
                    _log.warning("offset of group %r for %s is lost: %s", group, partition, code.name)
                self._counts["refused"] += code in _REFUSED
                self._counts["committed"] += code is ErrorCode.NONE
            done = {each for each, code in codes.items() if code in (ErrorCode.NONE, *_REFUSED)}
            done |= stored.keys() - missing.keys()
            left |= {each: brought for each, brought in wanted.items() if each not in done}
        return left

    def _stored(
        self, coordinator: int, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Committed offsets, -1 for none; omits partitions with an open transaction."""
        if coordinator == self.ownership.node_id:
            unstable = self.here.unstable(group, partitions)
            found = self.here.fetch(group)
            return {p: found[p].offset if p in found else -1 for p in partitions if p not in unstable}
        topics = tuple(starmap(api.OffsetFetchRequestTopic, by_topic(partitions)))
        request = api.OffsetFetchRequest(group_id=group, topics=topics, require_stable=True)
        answer = self._ask(coordinator, request, _FETCH_VERSION)
        _check(answer.error_code, coordinator)
        stored = {}
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    _check(each.error_code, coordinator)
                    stored[TopicPartition(topic.name, each.partition_index)] = each.committed_offset
        return stored

    def _committed(
        self, coordinator: int, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, ErrorCode]:
        """Commits from outside the group, which is refused while it has members."""
        if coordinator == self.ownership.node_id:
            try:
                self.here.commit(group, offsets)
            except KafkaError as e:
                return dict.fromkeys(offsets, e.code)
            return dict.fromkeys(offsets, ErrorCode.NONE)
        topics = []
        for topic, numbers in by_topic(offsets):
            commits = []
            for number in numbers:
                value = offsets[TopicPartition(topic, number)]
                commits.append(
                    api.OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=value.offset,
                        commit_timestamp=value.commit_timestamp_ms,
                        committed_metadata=value.metadata,
                    )
                )
            topics.append(api.OffsetCommitRequestTopic(topic, tuple(commits)))
        request = api.OffsetCommitRequest(group_id=group, topics=tuple(topics))
        answer = self._ask(coordinator, request, _COMMIT_VERSION)
        return {
            TopicPartition(topic.name, each.partition_index): each.error_code
            for topic in answer.topics
            for each in topic.partitions
        }

    def _ask(self, broker: int, request: Any, version: int) -> Any:
        answers: queue.SimpleQueue[tuple[Any, KafkaError | None]] = queue.SimpleQueue()
        self.peers.ask(broker, request, version, lambda *given: answers.put(given), _ANSWER_SECONDS)
        answer, error = answers.get()
        if error is not None:
            raise error
        return answer

    def _log_wait(self, group: str, error: KafkaError | None) -> None:
        if not self._waits:
            self._waits = True
            _log.warning(
                "offsets that this broker brought to its cluster wait, as those of group %r do: %s",
                group, error or "it has members there, or its coordinator is not ready",
            )  # fmt: skip

    def _keep(self) -> None:
        data = _encode(self._left)
        refusal: OSError | None = None
        kept = False
        for path in self._paths:
            try:
                if self._left and not kept:
                    replace_file(self.files, path, data, durable=True)
                    kept = True
                else:
                    self.files.remove(path)
            except FileNotFoundError:
                continue
            except OSError as e:
                refusal = e
        if self._left and not kept:
            raise StorageError(f"offsets that this broker brings cannot be noted: {refusal}") from refusal


def _parts(offsets: _Offsets) -> Iterator[dict[TopicPartition, CommittedOffset]]:
    items = iter(offsets.items())
    while part := dict(islice(items, _AT_ONCE)):
        yield part


def _check(code: ErrorCode, coordinator: int) -> None:
    if code is not ErrorCode.NONE:
        raise error_for(code, f"broker {coordinator} answers {code.name}")


def _encode(left: Mapping[str, _Offsets]) -> bytes:
    rows = [
        [
            group, each.topic, str(brought.topic_id), each.partition, brought.offset,
            brought.metadata, brought.commit_timestamp_ms, brought.expire_timestamp_ms,
        ]
        for group, offsets in left.items()
        for each, brought in offsets.items()
    ]  # fmt: skip
    return json.dumps({"version": 1, "offsets": rows}).encode()


def _decode(data: bytes, path: Path) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    left: dict[str, dict[TopicPartition, CommittedOffset]] = defaultdict(dict)
    try:
        for group, topic, topic_id, number, *value in json.loads(data)["offsets"]:
            offset, metadata, committed, expires = value
            left[group][TopicPartition(topic, number)] = CommittedOffset(
                offset, -1, metadata, committed, expires, UUID(topic_id)
            )
    except (ValueError, KeyError, TypeError) as e:
        raise StorageError(f"{path} is damaged; remove it to go on without these offsets: {e}") from e
    return left
