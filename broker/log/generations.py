"""The two families of logs, as tables: the only place where one generation differs from another.

Offline tools have a table of their own: `broker.inspect.inspection`.

Sources: 0.7.2 ``log/Log.scala``, ``log/LogManager.scala``, ``utils/TopicNameValidator.scala``; Kafka 3.9
``UnifiedLog``, ``LogSegment.shouldRoll``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from broker.disk.filesystem import FileSystem, OpenFiles
from broker.log.append.byte_validation import (
    check_messages,
    check_messages_in_steps,
    leave_as_they_are,
    leave_as_they_are_in_steps,
)
from broker.log.append.producers import GuardedProducers, NoProducers
from broker.log.append.validation import (
    check_entries,
    check_entries_in_steps,
    number_entries,
    number_entries_in_steps,
    take_long,
)
from broker.log.batch_times import BatchTimes
from broker.log.family import LOADED_INDEX_BYTES, Grown, LogFamily, LogTools
from broker.log.offset_scheme import ByteOffsets, LoadedSchemes, LogicalOffsets
from broker.log.scan import scan, scan07
from broker.log.topic_names import check_first_name, check_name
from pyspark_kafkalog.clock import Clock
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.formats.message_set import ENTRIES
from pyspark_kafkalog.formats.v07 import V07Format

SINCE_08 = LogFamily(
    generation="0.8",
    format=ENTRIES,
    scan=scan,
    scheme=LogicalOffsets,
    takes_long=take_long,
    check=check_entries,
    check_in_steps=check_entries_in_steps,
    number=number_entries,
    number_in_steps=number_entries_in_steps,
    producers=GuardedProducers,
    readable_end=LogicalOffsets.readable_end,
    is_full=LogicalOffsets.is_full,
    check_name=check_name,
)
"""Kafka 0.8 and later: offsets count records; v0, v1, v2 entries may be mixed."""

V07 = LogFamily(
    generation="0.7",
    format=V07Format(),
    scan=scan07,
    scheme=ByteOffsets,
    takes_long=lambda _data, _config: True,
    check=check_messages,
    check_in_steps=check_messages_in_steps,
    number=leave_as_they_are,
    number_in_steps=leave_as_they_are_in_steps,
    producers=lambda _path, _files, _expiration_ms: NoProducers(),
    readable_end=ByteOffsets.readable_end,
    is_full=ByteOffsets.is_full,
    check_name=check_first_name,
)
"""Kafka 0.7: offsets count bytes, readers see what is on the disk."""

FAMILIES: Mapping[str, LogFamily] = MappingProxyType({f.generation: f for f in (SINCE_08, V07)})


def family_of(generation: str) -> LogFamily:
    """The family with this name. Raises `InvalidConfig`: there is none."""
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
    """The tools of each generation's logs: they share the disk, its open files, the memory for indexes."""
    schemes, times = LoadedSchemes(LOADED_INDEX_BYTES), BatchTimes()
    return {
        generation: LogTools(
            files, pool, clock, family, schemes, flushed, times, producer_expiration_ms, grown
        )
        for generation, family in FAMILIES.items()
    }
