"""Resolves the start and end of a read, from options, a group's offsets or text files, to offsets. A file's
lines are those of Kafka's first bulk loader: address (of the owning broker in 0.7), topic, partition and next
offset, separated by tabs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyspark_kafkalog.config.definition import INT_MAX, LONG_MAX
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    Committed,
    Edge,
    GlobalTimestamp,
    GroupOffsets,
    OffsetFiles,
    OffsetLimit,
    OffsetsByPartition,
    SpecificOffsets,
    check_order,
    listed,
)
from pyspark_kafkalog.datasource.reading.source_cluster import OffsetRange, SourceCluster
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, NO_BROKER, TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions, SourceOptions

FILES = "part-*"

_UNSET = -1


def locate_start(
    options: SourceOptions, cluster: SourceCluster, partitions: Sequence[TopicPartition]
) -> OffsetsByPartition:
    """The offset or placeholder where each of ``partitions`` begins: the earliest without a stored offset."""
    start = options.start
    if isinstance(start, GroupOffsets):
        found = cluster.group_offsets(options.group_id or "", partitions)
    elif isinstance(start, OffsetFiles):
        found = read_offset_files(start.directory, cluster.broker_addresses())
    elif isinstance(start, Committed):
        if start.offsets is None:
            raise InvalidConfig(
                f"startingOffsets=commit:{start.number} is for batch reads with loadName and offsetsPath, "
                "which say whose commit is meant; a load goes back with `kafkalog rewind`"
            )
        found = {p: offset for p, offset in start.offsets.items() if p in set(partitions)}
    else:
        return locate(start, partitions, look_up=cluster.offsets, missing_is_latest=options.missing_is_latest)
    return {p: found.get(p, EARLIEST_OFFSET) for p in sorted(partitions)}


Bounds: TypeAlias = Mapping[TopicPartition, tuple[int, int]]


def asked_ranges(
    options: BatchOptions, cluster: SourceCluster, partitions: Sequence[TopicPartition]
) -> list[OffsetRange]:
    """A range for each of ``partitions``, in their order; placeholders stay. Raises `InvalidConfig`."""
    starts = locate_start(options, cluster, partitions)
    ends = locate(options.end, partitions, look_up=cluster.offsets, missing_is_latest=True)
    check_order(starts, ends, resolved=False)
    return [OffsetRange(p, starts[p], ends[p]) for p in partitions]


def bounds_now(cluster: SourceCluster, asked: Sequence[OffsetRange]) -> Bounds:
    """The ranges' current offsets. Raises `InvalidConfig` if one ends before it starts."""
    # Starts first: records written meanwhile only make a range longer.
    first = cluster.resolve({r.topic_partition: r.start for r in asked})
    last = cluster.resolve({r.topic_partition: r.end for r in asked})
    check_order(first, last, resolved=True)
    return {r.topic_partition: (first[r.topic_partition], last[r.topic_partition]) for r in asked}


TimestampLookup = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]
"""Milliseconds by partition to the offset of the first record at or after them, -1 without one."""


def locate(
    limit: OffsetLimit,
    partitions: Iterable[TopicPartition],
    *,
    look_up: TimestampLookup,
    missing_is_latest: bool,
) -> OffsetsByPartition:
    """The offset (or placeholder) of ``limit`` for each of ``partitions``. Without a record as late as a
    timestamp it is `LATEST_OFFSET` if ``missing_is_latest``, else an error.
    """
    partitions = sorted(partitions)
    if isinstance(limit, Edge):
        return dict.fromkeys(partitions, limit.offset)
    if isinstance(limit, SpecificOffsets):
        return _locate_specific(limit, partitions)
    if isinstance(limit, GlobalTimestamp):
        asked: Mapping[TopicPartition, int] = dict.fromkeys(partitions, limit.timestamp_ms)
    else:
        asked = limit.timestamps
        _check_same("KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED", asked, partitions)
    found = look_up(asked)
    for partition in partitions:
        if found[partition] < 0 and not missing_is_latest:
            raise InvalidConfig(
                f"No offset matched from request of topic-partition {partition} and timestamp "
                f"{asked[partition]}. Set startingOffsetsByTimestampStrategy=latest to start such "
                "partitions at the end."
            )
    return {p: found[p] if found[p] >= 0 else LATEST_OFFSET for p in partitions}


def _locate_specific(limit: SpecificOffsets, partitions: list[TopicPartition]) -> OffsetsByPartition:
    names = {p.topic for p in partitions}
    unknown = sorted(set(limit.topics) - names)
    if unknown:
        raise InvalidConfig(
            "[KAFKA_TOPIC_OFFSET_DOES_NOT_MATCH_ASSIGNED] Topics with an offset of their own must be among "
            f"those read. Named: {unknown}. Read: {sorted(names)}"
        )
    rest = [p for p in partitions if p.topic not in limit.topics]
    _check_same("KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED", limit.partitions, rest)
    return {p: limit.topics[p.topic] for p in partitions if p.topic in limit.topics} | {**limit.partitions}


def _check_same(condition: str, named: Iterable[TopicPartition], assigned: Iterable[TopicPartition]) -> None:
    named, assigned = set(named), set(assigned)
    if named == assigned:
        return
    raise InvalidConfig(
        f"[{condition}] Every partition that is read, and no other, must be named; use -1 for latest, -2 for "
        f"earliest. Assigned: {listed(assigned)}. Named: {listed(named)}. "
        f"Not named: {listed(assigned - named)}. Not read: {listed(named - assigned)}"
    )


def read_offset_files(directory: str, brokers: Mapping[str, int] | None = None) -> OffsetsByPartition:
    """The next offsets in ``part-*`` files; ``brokers``, of 0.7, are the live ones' ids by ``host:port``."""
    asked = f"startingOffsets=file:{directory}"
    found: OffsetsByPartition = {}
    found_in: dict[TopicPartition, str] = {}
    try:
        paths = sorted(path for path in Path(directory).glob(FILES) if path.is_file())
        texts = [(path.name, path.read_text(encoding="utf-8")) for path in paths]
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidConfig(f"{asked}: cannot be read: {e}") from e
    if not texts:
        raise InvalidConfig(
            f"{asked}: no file named {FILES} is there. Write one, or use startingOffsets=earliest"
        )
    lines = [
        (f"{name}, line {number}", line)
        for name, text in texts
        for number, line in enumerate(text.splitlines(), start=1)
    ]
    for where, line in lines:
        if not line.strip():
            continue
        partition, offset = _line(f"{asked}: {where}", line, brokers)
        if found.setdefault(partition, offset) != offset:
            raise InvalidConfig(
                f"{asked}: {partition} is at {found[partition]} in {found_in[partition]} and at {offset} "
                f"in {where}; leave the right one of the two"
            )
        found_in.setdefault(partition, where)
    return {p: EARLIEST_OFFSET if offset == _UNSET else offset for p, offset in found.items()}


def _line(where: str, line: str, brokers: Mapping[str, int] | None) -> tuple[TopicPartition, int]:
    # Blanks around a field mean nothing, and would make another topic of it.
    fields = [field.strip() for field in line.strip().split("\t")]
    if len(fields) == 4 and re.fullmatch(r"[0-9]{1,10}", fields[2]) and re.fullmatch(
        r"-[12]|[0-9]{1,19}", fields[3]
    ):  # fmt: skip
        partition, offset = int(fields[2]), int(fields[3])
        if partition <= INT_MAX and offset <= LONG_MAX:
            broker = NO_BROKER if brokers is None else _broker(where, fields[0], brokers)
            return TopicPartition(fields[1], partition, broker), offset
    raise InvalidConfig(f"{where} is not 'tcp://host:port TAB topic TAB partition TAB next offset': {line!r}")


def _broker(where: str, uri: str, brokers: Mapping[str, int]) -> int:
    by_address = {f"tcp://{address}".lower(): broker for address, broker in brokers.items()}
    found = by_address.get(uri.lower())
    if found is None:
        live = ", ".join(f"broker {broker} at {address}" for address, broker in sorted(by_address.items()))
        raise InvalidConfig(
            f"{where}: no live broker is at {uri!r}, and the address says whose partition is meant. "
            f"Live: {live or 'none'}"
        )
    return found
