"""Decides which of a log's oldest segments are deleted; offsets by segment times. Pure but for a log line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import import_module
from itertools import takewhile
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from kafkalog_broker.config.broker_config import LogConfig
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig, KafkaError, ServerError
from pyspark_kafkalog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

_logger = logging.getLogger(__name__)

_JUST_WRITTEN_MS = 3_600_000


class SegmentFacts(msgspec.Struct, frozen=True):
    """A segment as policies see it. ``age_timestamp``: largest record timestamp, else ``modified_ms``."""

    base_offset: int
    size_bytes: int
    age_timestamp: int
    modified_ms: int


class RetentionPolicy(Protocol):
    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        """How many of ``segments``, in log order, may be deleted from the front."""


class ByAge(msgspec.Struct, frozen=True):
    retention_ms: int

    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        old = takewhile(lambda segment: now_ms - segment.age_timestamp > self.retention_ms, segments)
        return sum(1 for _ in old)


class BySize(msgspec.Struct, frozen=True):
    """Deletes segments while the later ones still have ``retention_bytes``."""

    retention_bytes: int

    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:  # noqa: ARG002 - the protocol's
        left = sum(segment.size_bytes for segment in segments)
        count = 0
        for segment in segments:
            left -= segment.size_bytes
            if left < self.retention_bytes:
                break
            count += 1
        return count


class Either(msgspec.Struct, frozen=True):
    policies: tuple[RetentionPolicy, ...]

    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        return max((policy.expired(segments, now_ms) for policy in self.policies), default=0)


def policy_of(config: LogConfig) -> RetentionPolicy:
    """The policy for a topic's properties; -1 disables a bound."""
    if "delete" not in config.cleanup_policy:
        return Either(())
    policies: list[RetentionPolicy] = []
    if config.retention_ms >= 0:
        policies.append(ByAge(config.retention_ms))
    if config.retention_bytes >= 0:
        policies.append(BySize(config.retention_bytes))
    return Either(tuple(policies))


PolicyMaker: TypeAlias = Callable[[LogConfig], RetentionPolicy]

_ALLOWED = "allowed: module:Class, where Class has a method expired and PYTHONPATH has the module"


class PolicyFailed(KafkaError):
    """A user's policy raised or returned an invalid count. Nothing is deleted."""


class PolicyFailures:
    """*Not thread-safe: for retention's thread.* Logs a policy's failure once, until it changes or passes."""

    def __init__(self) -> None:
        self._last: str | None = None

    def tell(self, kept: Mapping[TopicPartition, PolicyFailed]) -> None:
        """``kept``: the partitions of which nothing was deleted."""
        partition, failure = next(iter(kept.items()), (None, None))
        text = None if failure is None else str(failure)
        if text is not None and text != self._last:
            others = f" and of {len(kept) - 1} other partitions" if len(kept) > 1 else ""
            _logger.warning(
                "%s. All of %s%s is kept", text, partition, others, exc_info=failure and failure.__cause__
            )
        self._last = text


def policy_named(name: str) -> PolicyMaker:
    """A user's policy ``module:Class``; its errors, except KeyboardInterrupt, become `PolicyFailed`."""
    module, _, cls = name.partition(":")
    if not module or module.startswith(".") or not cls.isidentifier():
        raise InvalidConfig(f"log.retention.policy={name} is not allowed; {_ALLOWED}")
    try:
        made = getattr(import_module(module), cls)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # user code, which may even raise SystemExit
        raise InvalidConfig(
            f"log.retention.policy={name} cannot be imported: {type(e).__name__}: {e}; {_ALLOWED}"
        ) from e
    if not isinstance(made, type) or not callable(getattr(made, "expired", None)):
        raise InvalidConfig(f"log.retention.policy={name} is not a retention policy; {_ALLOWED}")
    return lambda config: _Own(name, made, config)


class _Own(msgspec.Struct, frozen=True):
    """A user's policy; its errors neither delete segments nor end the calling thread."""

    name: str
    make: Callable[[LogConfig], RetentionPolicy]
    config: LogConfig

    def expired(self, segments: Sequence[SegmentFacts], now_ms: int) -> int:
        if "delete" not in self.config.cleanup_policy:
            return 0
        try:
            count = self.make(self.config).expired(tuple(segments), now_ms)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            raise PolicyFailed(f"log.retention.policy={self.name} failed: {e!r}") from e
        if type(count) is not int or not 0 <= count <= len(segments):
            raise PolicyFailed(
                f"log.retention.policy={self.name} answered {count!r} for {len(segments)} segments"
            )
        return count


def count_expired(policy: RetentionPolicy, segments: Sequence[SegmentFacts], now_ms: int) -> int:
    """How many may be deleted from the front; an empty last segment stays."""
    return policy.expired(segments if segments[-1].size_bytes else segments[:-1], now_ms)


def just_written(
    policy: RetentionPolicy, segments: Sequence[SegmentFacts], count: int, now_ms: int
) -> list[SegmentFacts]:
    """Expired segments written within the last hour, with old record times; not for a user's policy."""
    if not isinstance(policy, Either):
        return []
    by_file = [replace(segment, age_timestamp=segment.modified_ms) for segment in segments]
    return [
        segment
        for segment in segments[count_expired(policy, by_file, now_ms) : count]
        if now_ms - segment.modified_ms < _JUST_WRITTEN_MS < segment.modified_ms - segment.age_timestamp
    ]


def lost_by_their_times(fresh: Sequence[SegmentFacts], retention_ms: int) -> str:
    newest = max(segment.age_timestamp for segment in fresh) / 1000
    at_the_latest = datetime.fromtimestamp(newest, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"retention deleted {len(fresh)} segment(s) that were written less than an hour ago, because their "
        f"records' own timestamps, {at_the_latest} at the latest, are older than "
        f"retention.ms={retention_ms}. To keep old records, set retention.ms=-1 for the topic or "
        "log.retention.ms=-1 for the broker; or "
        "message.timestamp.type=LogAppendTime, so that their time is that of writing"
    )


def offsets_before(
    segments: Sequence[SegmentFacts], readable_end: int, now_ms: int, timestamp: int, max_count: int
) -> tuple[int, ...]:
    """Base offsets of segments last modified at or before ``timestamp``, newest first; before them
    ``readable_end`` at ``now_ms``. As 0.7.2 ``Log.getOffsetsBefore``, Kafka 3.9 ``legacyFetchOffsetsBefore``.
    """
    # A segment that begins above the flushed end is not readable yet.
    found = [(s.base_offset, s.modified_ms) for s in segments if s.base_offset <= readable_end]
    if found and found[-1][0] < readable_end:
        found.append((readable_end, now_ms))
    if timestamp == LATEST_TIMESTAMP:
        count = len(found)
    elif timestamp == EARLIEST_TIMESTAMP:
        count = min(1, len(found))
    else:
        count = next((n for n in range(len(found), 0, -1) if found[n - 1][1] <= timestamp), 0)
    return tuple(offset for offset, _ in reversed(found[max(0, count - max_count) : count]))


def check_timed(partition: TopicPartition, config: LogConfig) -> None:
    """Format v0 has no timestamps. Source: Kafka 3.9 ``UnifiedLog.fetchOffsetByTimestamp``."""
    if config.magic == 0:
        raise ServerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"{partition}: messages have no time with message.format.version={config.message_format_version}",
        )
