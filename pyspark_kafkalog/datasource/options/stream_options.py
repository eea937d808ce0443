"""The options of ``spark.readStream.format("kafkalog")`` as checked and typed values. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark_kafkalog.config.consumer07 import Source07Config
from pyspark_kafkalog.datasource.options.load_options import kept_place
from pyspark_kafkalog.datasource.options.read_options import (
    BY_KEY,
    SourceOptions,
    batch_options,
    by_lower_name,
    choice,
    duration_ms,
    options_for_use,
    positive,
    shared_options,
    start_of,
)
from pyspark_kafkalog.datasource.options.topics_and_offsets import LATEST, Committed
from pyspark_kafkalog.errors import InvalidConfig

_ENDINGS = {
    "endingoffsets": "ending offset not valid in streaming queries",
    "endingoffsetsbytimestamp": "ending timestamp not valid in streaming queries",
    "endingtimestamp": "ending timestamp not valid in streaming queries",
}
_OF_LOADS = ("loadname", "onpendingplan", "ontopicrecreated", "loadplan", "loadrun", "between", "asof")
_WHY_BOTH = (
    "streamName is the name under which offsetsPath, a directory, keeps where the stream began; give both or "
    "neither"
)
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"


@dataclass(frozen=True, slots=True)
class StartPlace:
    """Where a query's resolved start is kept: ``name`` in the directory ``offsets_path``, an absolute one."""

    offsets_path: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(SourceOptions):
    """What a stream was asked for. Limits count offsets, of all partitions together."""

    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    """How long a batch may wait for ``min_offsets``."""
    commits_group: bool
    """Whether ``group_id`` is told the offsets of each finished batch."""
    start_place: StartPlace | None


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Check the options of ``spark.readStream.format("kafkalog")``.

    Raises:
        InvalidConfig: one is missing, unknown, contradictory or has a wrong value; the text names it.
    """
    return stream_options(options_for_use(given, "stream"))


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """`parse_stream_options` of names in lower case, and without a word about what is ignored."""
    _refuse(options)
    start = start_of(options, LATEST)
    if isinstance(start, Committed):
        raise InvalidConfig(
            "startingOffsets=commit:N is for batches; startingOffsets=file:<offsetsPath>/<loadName>/offsets "
            "begins a stream where the last load ended"
        )
    shared = shared_options(options, start)
    least, most = (positive(options, f"{bound}OffsetsPerTrigger") for bound in ("min", "max"))
    if least is not None and most is not None and least > most:
        raise InvalidConfig(
            f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
        )
    if isinstance(shared["wire"], Source07Config) and (least or most):
        raise InvalidConfig(
            f"{'min' if least else 'max'}OffsetsPerTrigger has no meaning with protocol=0.7: offsets of "
            "Kafka 0.7 are positions in bytes, and do not tell how many messages lie between them"
        )
    return StreamOptions(
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=duration_ms(options, "maxTriggerDelay"),
        commits_group=_commits_group(options),
        start_place=_start_place(options),
        **shared,
    )


def parse_either_options(given: Mapping[str, str]) -> SourceOptions:
    """Options that are right for a batch or for a stream: Spark asks both for their schema alike.

    Raises:
        InvalidConfig: they are right for neither.
    """
    options = by_lower_name(given)
    parsers: list[Callable[[Mapping[str, str]], SourceOptions]] = [batch_options, stream_options]
    if any(key in BY_KEY and BY_KEY[key].use == "stream" for key in options):
        parsers.reverse()
    likely, other = parsers
    try:
        return likely(options)
    except InvalidConfig as e:
        try:
            return other(options)
        except InvalidConfig:
            raise e from None


def _refuse(options: Mapping[str, str]) -> None:
    for key, why in _ENDINGS.items():
        if key in options:
            raise InvalidConfig(f"{why}: {BY_KEY[key].name} is given, and a stream has no end")
    for key in _OF_LOADS:
        if key in options:
            raise InvalidConfig(
                f"{BY_KEY[key].name} has no meaning in a stream: loads are batches, and a stream's "
                "checkpoint keeps its position. streamName and offsetsPath keep where it began"
            )


def _commits_group(options: Mapping[str, str]) -> bool:
    if choice(options, "commitOffsets", ("none", "stage", "group")) == "stage":
        raise InvalidConfig(
            "commitOffsets=stage has no meaning in a stream, whose checkpoint says what was read; "
            "commitOffsets=group tells kafka.group.id"
        )
    commits = choice(options, "commitOffsets", ("none", "group")) == "group"
    if commits and not options.get("kafka.group.id", "").strip():
        raise InvalidConfig(
            "commitOffsets=group needs kafka.group.id: the group that is told the stream's next offsets"
        )
    return commits


def _start_place(options: Mapping[str, str]) -> StartPlace | None:
    place = kept_place(options, "streamName", _WHY_BOTH)
    if place is None:
        return None
    path, name = place
    if not re.fullmatch(_NAME, name):
        raise InvalidConfig(f"streamName is up to 200 letters, digits, '.', '_' and '-'; got '{name}'")
    return StartPlace(path, name)
