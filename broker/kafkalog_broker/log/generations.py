"""The only place where generations differ. Sources: 0.7.2 ``log/Log.scala``, ``log/LogManager.scala``,
``utils/TopicNameValidator.scala``; Kafka 3.9 ``UnifiedLog``, ``LogSegment.shouldRoll``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import quote, unquote

from kafkalog_broker.disk.filesystem import FileSystem, OpenFiles
from kafkalog_broker.log.append import validation
from kafkalog_broker.log.append.producer_states import GuardedProducers
from kafkalog_broker.log.family import LOADED_INDEX_BYTES, Grown, LogFamily, LogTools, Producers
from kafkalog_broker.log.offset_scheme import BatchTimes, ByteOffsets, LoadedSchemes, LogicalOffsets
from kafkalog_broker.log.scan import scan, scan07
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import InvalidConfig, InvalidTopic
from pyspark_kafkalog.formats.message_set import ENTRIES
from pyspark_kafkalog.formats.v07 import V07Format
from pyspark_kafkalog.protocol.v07 import check_topic

MAX_NAME_LENGTH = 249
"""Kafka's: 255 for a file name, minus the suffix of a partition's directory."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def check_name(name: str, others: Iterable[str] = ()) -> None:
    """Apply Kafka's topic name rules: length, characters, no collision. Raises `InvalidTopic`."""
    if not name:
        raise InvalidTopic("a topic name cannot be empty")
    if name in (".", ".."):
        raise InvalidTopic(f"a topic cannot be called {name!r}")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTopic(f"topic name of {len(name)} characters; the limit is {MAX_NAME_LENGTH}")
    if not _LEGAL.match(name):
        raise InvalidTopic(f"topic name {name!r}: only ASCII letters, digits, '.', '_' and '-' are allowed")
    clash = collision(name, others)
    if clash is not None:
        raise InvalidTopic(f"topic {name!r} collides with {clash!r}: '.' and '_' count as one character")


def check_first_name(name: str, others: Iterable[str] = ()) -> None:  # noqa: ARG001 - any two may exist together
    check_topic(name)
    length = len(file_name(name))
    if length > MAX_NAME_LENGTH:
        raise InvalidTopic(
            f"topic name {name!r} is of {length} characters as a file name; the limit is {MAX_NAME_LENGTH}"
        )


def collision(name: str, others: Iterable[str]) -> str | None:
    """The first of ``others`` that differs only by ``.`` and ``_``, which are one in Kafka's metric names."""
    folded = name.replace(".", "_")
    return next((o for o in others if o != name and o.replace(".", "_") == folded), None)


@lru_cache(1024)
def file_name(topic: str) -> str:
    return quote(topic, safe="").replace("~", "%7E")


def topic_of_file(name: str) -> str | None:
    topic = unquote(name)
    return topic if topic and file_name(topic) == name else None


SINCE_08 = LogFamily(
    generation="0.8",
    format=ENTRIES,
    scan=scan,
    scheme=LogicalOffsets,
    takes_long=validation.takes_long,
    check=validation.check_entries,
    number=validation.number_entries,
    producers=GuardedProducers,
    check_name=check_name,
)
"""Kafka 0.8 and later: offsets count records; v0, v1 and v2 entries may be mixed."""

V07 = LogFamily(
    generation="0.7",
    format=V07Format(),
    scan=scan07,
    scheme=ByteOffsets,
    takes_long=validation.takes_long_v07,
    check=validation.check_v07,
    number=lambda data, batches, *_: (data, batches),  # the messages hold no offset, time or epoch
    producers=lambda _path, _files, _expiration_ms: Producers(),
    check_name=check_first_name,
)
"""Kafka 0.7: offsets count bytes; readers see flushed data only."""

FAMILIES: Mapping[str, LogFamily] = MappingProxyType({f.generation: f for f in (SINCE_08, V07)})


def family_of(generation: str) -> LogFamily:
    try:
        return FAMILIES[generation]
    except KeyError:
        known = " or ".join(FAMILIES)
        raise InvalidConfig(f"generation={generation[:100]} is not allowed; allowed: {known}") from None


def tools_of_all(
    files: FileSystem,
    pool: OpenFiles,
    clock: Clock,
    flushed: Callable[[float], object],
    producer_expiration_ms: int,
    grown: Grown,
) -> dict[str, LogTools]:
    schemes, times = LoadedSchemes(LOADED_INDEX_BYTES), BatchTimes()
    return {
        generation: LogTools(
            files, pool, clock, family, schemes, flushed, times, producer_expiration_ms, grown
        )
        for generation, family in FAMILIES.items()
    }
