"""Topic properties: Kafka's names and defaults, which the broker's properties may change. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from pyspark_kafkalog.config.definition import (
    INT_MAX,
    LONG_MAX,
    Check,
    Config,
    between,
    configuration,
    describe,
    nearest,
    not_negative,
    one_of,
    positive,
    prop,
    unlimited_or_not_negative,
)
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TimestampType

AS_PRODUCED = "producer"
"""Entries keep the format in which they arrive, as ``compression.type=producer`` does for codecs."""

_V0 = ("0.8.0", "0.8.1", "0.8.2", "0.9.0")
_V1 = ("0.10.0", "0.10.1", "0.10.2")
_V2 = ("0.11.0", "1.0", "1.1", *(f"2.{minor}" for minor in range(9)), *(f"3.{minor}" for minor in range(10)))

_FORMATS: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(_V0, 0) | dict.fromkeys(_V1, 1) | dict.fromkeys(_V2, 2)
)
"""By release. Kafka 4.0 no longer has the property."""

_VERSION = re.compile(r"((?:0\.)?[0-9]{1,2}\.[0-9]{1,2})(?:(?:\.[0-9]{1,3})+|-IV[0-9])?")
"""A release, optionally with a patch number, or a preceding protocol version: 0.10.0-IV1."""


def magic_of(version: str) -> int | None:
    named = _VERSION.fullmatch(version)
    return _FORMATS[named[1]] if named is not None else None


def _is_known(version: str) -> bool:
    named = _VERSION.fullmatch(version)
    return version == AS_PRODUCED or (named is not None and named[1] in _FORMATS)


format_versions = Check(
    f"{AS_PRODUCED}, or a version of Kafka from 0.8.0 to 3.9, such as 0.9.0, 0.10.2, 0.11.0, 3.0", _is_known
)


_HOUR_MS = 3_600_000

either_timestamp_type = one_of("CreateTime", "LogAppendTime")
policies = Check(
    "delete, compact or both, separated by commas, or nothing",
    lambda words: set(words) <= {"delete", "compact"},
)
_THROTTLED = re.compile(r"[0-9]+:[0-9]+")
throttled_replicas = Check(
    "* for all, or PARTITION:BROKER, several separated by commas",
    lambda words: words == ("*",) or all(map(_THROTTLED.fullmatch, words)),
)
compression_types = one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")

_KEPT = "Kept and shown, without effect"


@configuration
class LogConfig(Config):
    """Properties that a topic may set; others come from `BrokerConfig`."""

    # fmt: off
    segment_bytes: int = prop(
        "segment.bytes", 1 << 30, int, check=between(14, INT_MAX), unit="bytes", inherits="log.segment.bytes",
        doc="Size at which a new segment file is started.")
    segment_ms: int = prop(
        "segment.ms", 168 * _HOUR_MS, int, check=positive, unit="ms", inherits="log.roll.ms",
        doc="Age at which a new segment file is started, whatever its size.")
    segment_index_bytes: int = prop(
        "segment.index.bytes", 10 << 20, int, check=between(4, INT_MAX), unit="bytes",
        inherits="log.index.size.max.bytes",
        doc="Size of a segment's index at which a new segment is started.")
    index_interval_bytes: int = prop(
        "index.interval.bytes", 4096, int, check=between(0, INT_MAX), unit="bytes",
        inherits="log.index.interval.bytes", doc="Data between two entries of the offset index.")
    flush_messages: int = prop(
        "flush.messages", LONG_MAX, int, check=positive, unit="messages",
        inherits="log.flush.interval.messages",
        doc="Messages after which a partition is forced to disk. 1: each append, before its answer.")
    flush_ms: int = prop(
        "flush.ms", 3000, int, check=not_negative, unit="ms", inherits="log.flush.interval.ms",
        doc="Age of unflushed data at which a partition is forced to disk (0.7's default; Kafka leaves that "
            "to the system and replicas).")
    retention_ms: int = prop(
        "retention.ms", 168 * _HOUR_MS, int, check=unlimited_or_not_negative, unit="ms",
        inherits="log.retention.ms", doc="Age of its newest record at which a segment is deleted.")
    retention_bytes: int = prop(
        "retention.bytes", -1, int, unit="bytes", inherits="log.retention.bytes",
        doc="Size of a partition above which its oldest segments are deleted. Below 0: no limit.")
    cleanup_policy: tuple[str, ...] = prop(
        "cleanup.policy", ("delete",), tuple, check=policies, inherits="log.cleanup.policy",
        doc="How old data is removed: whole segments by age and size (delete), all but the last record of "
            "each key (compact), both, or nothing at all (empty).")
    delete_retention_ms: int = prop(
        "delete.retention.ms", 86_400_000, int, check=not_negative, unit="ms",
        inherits="log.cleaner.delete.retention.ms",
        doc="How long a tombstone is kept after the first cleaning that has seen it.")
    min_compaction_lag_ms: int = prop(
        "min.compaction.lag.ms", 0, int, check=not_negative, unit="ms",
        inherits="log.cleaner.min.compaction.lag.ms", doc="Records younger than this are not compacted.")
    max_compaction_lag_ms: int = prop(
        "max.compaction.lag.ms", LONG_MAX, int, check=positive, unit="ms",
        inherits="log.cleaner.max.compaction.lag.ms",
        doc="Age at which records are compacted, however small the dirty share; a compacted topic's segment "
            "is closed at this age at the latest.")
    min_cleanable_dirty_ratio: float = prop(
        "min.cleanable.dirty.ratio", 0.5, float, inherits="log.cleaner.min.cleanable.ratio",
        check=Check("0 to 1, or NaN", lambda v: not (v < 0 or v > 1)),
        doc="Share of a log that must be dirty before it is cleaned. NaN: only max.compaction.lag.ms counts.")
    file_delete_delay_ms: int = prop(
        "file.delete.delay.ms", 60_000, int, check=not_negative, unit="ms",
        inherits="log.segment.delete.delay.ms",
        doc="How long the files of a deleted segment are kept, for reads in progress.")
    max_message_bytes: int = prop(
        "max.message.bytes", 1_048_588, int, check=between(0, INT_MAX), unit="bytes",
        inherits="message.max.bytes",
        doc="Largest record batch that is accepted, as it is sent; in 0.7 the largest payload.")
    message_timestamp_type: str = prop(
        "message.timestamp.type", "CreateTime", check=either_timestamp_type,
        inherits="log.message.timestamp.type",
        doc="Timestamp of records: the producer's, or the time at which the broker appends them.")
    message_timestamp_before_max_ms: int = prop(
        "message.timestamp.before.max.ms", LONG_MAX, int, check=not_negative, unit="ms",
        inherits="log.message.timestamp.before.max.ms",
        doc="How far a record's timestamp may be before the broker's clock.")
    message_timestamp_after_max_ms: int = prop(
        "message.timestamp.after.max.ms", _HOUR_MS, int, check=not_negative, unit="ms",
        inherits="log.message.timestamp.after.max.ms",
        doc="How far a record's timestamp may be after the broker's clock.")
    message_format_version: str = prop(
        "message.format.version", "3.0-IV1", check=format_versions, inherits="log.message.format.version",
        doc="Format in which messages are stored, as a version of Kafka: 0.8 and 0.9 mean v0, 0.10 v1, "
            "later ones v2. Others are converted when they are appended. producer (not in Kafka): as sent.")
    compression_type: str = prop(
        "compression.type", "producer", check=compression_types, inherits="compression.type",
        doc="Kept and shown, without effect: batches stay as their producer compressed them, whatever this "
            "says.")
    min_insync_replicas: int = prop(
        "min.insync.replicas", 1, int, check=between(1, 1), unit="replicas", inherits="min.insync.replicas",
        doc="Copies that must have a record before acks=all is answered; this broker keeps one.")

    # Kafka's other properties, so that tools and scripts that set them can create topics.
    compression_gzip_level: int = prop(
        "compression.gzip.level", -1, int, check=Check("1 to 9, or -1", lambda v: v == -1 or 1 <= v <= 9),
        section=_KEPT, doc=f"{_KEPT}: the broker does not recompress.")
    compression_lz4_level: int = prop(
        "compression.lz4.level", 9, int, check=between(1, 17),
        doc=f"{_KEPT}: the broker does not recompress.")
    compression_zstd_level: int = prop(
        "compression.zstd.level", 3, int, check=between(-131_072, 22),
        doc=f"{_KEPT}: the broker does not recompress.")
    segment_jitter_ms: int = prop(
        "segment.jitter.ms", 0, int, check=not_negative, unit="ms",
        doc=f"{_KEPT}: segments are started exactly after segment.ms.")
    preallocate: bool = prop(
        "preallocate", False, bool, doc=f"{_KEPT}: segment files grow as they are written.")
    unclean_leader_election_enable: bool = prop(
        "unclean.leader.election.enable", False, bool, doc=f"{_KEPT}: there are no replicas to elect.")
    message_downconversion_enable: bool = prop(
        "message.downconversion.enable", True, bool,
        doc=f"{_KEPT}: old clients always get a format that they can read.")
    message_timestamp_difference_max_ms: int = prop(
        "message.timestamp.difference.max.ms", LONG_MAX, int, check=not_negative, unit="ms",
        doc=f"{_KEPT}: use message.timestamp.before.max.ms and message.timestamp.after.max.ms.")
    leader_throttled_replicas: tuple[str, ...] = prop(
        "leader.replication.throttled.replicas", (), tuple, check=throttled_replicas,
        doc=f"{_KEPT}: there are no replicas.")
    follower_throttled_replicas: tuple[str, ...] = prop(
        "follower.replication.throttled.replicas", (), tuple, check=throttled_replicas,
        doc=f"{_KEPT}: there are no replicas.")
    remote_storage_enable: bool = prop(
        "remote.storage.enable", False, bool, check=Check("only false", lambda v: not v),
        doc="There is no tiered storage: all segments are local.")
    local_retention_ms: int = prop(
        "local.retention.ms", -2, int, check=Check(f"-2 to {LONG_MAX}", lambda v: v >= -2), unit="ms",
        doc=f"{_KEPT}: all segments are local, and retention.ms says how long they stay.")
    local_retention_bytes: int = prop(
        "local.retention.bytes", -2, int, check=Check(f"-2 to {LONG_MAX}", lambda v: v >= -2), unit="bytes",
        doc=f"{_KEPT}: all segments are local, and retention.bytes says how many stay.")
    # fmt: on

    @cached_property
    def roll_ms(self) -> int:
        """Age at which a segment is full; limited so that compaction is in time."""
        compacts = "compact" in self.cleanup_policy
        return min(self.segment_ms, self.max_compaction_lag_ms) if compacts else self.segment_ms

    @cached_property
    def timestamp_type(self) -> TimestampType:
        return (
            TimestampType.CREATE_TIME
            if self.message_timestamp_type == "CreateTime"
            else TimestampType.LOG_APPEND_TIME
        )

    @cached_property
    def magic(self) -> int | None:
        return magic_of(self.message_format_version)

    def overridden(self, overrides: Mapping[str, str]) -> LogConfig:
        """These properties with a topic's overrides. Raises `InvalidConfig`: unknown name or bad value."""
        if not overrides:
            return self
        known = {item.name: item for item in describe(LogConfig)}
        values: dict[str, Any] = {}
        for name, value in overrides.items():
            if name not in known:
                near = nearest(name[:100], known)
                raise InvalidConfig(
                    f"topic: unknown property {name[:100]}" + (f"; did you mean {near}?" if near else "")
                )
            values[known[name].field] = known[name].read(value, "topic")
        return replace(self, **values)


def topic_default(field: str, *, aliases: tuple[str, ...] = (), section: str = "") -> Any:
    """The broker's property that is the default of `LogConfig`'s ``field``."""
    item = next(item for item in describe(LogConfig) if item.field == field)
    return prop(
        item.inherits, item.default, item.kind,
        aliases=aliases, check=item.check, unit=item.unit, section=section, doc=item.doc,
    )  # fmt: skip
