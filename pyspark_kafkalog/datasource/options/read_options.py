"""Parses the options of ``spark.read`` and ``spark.readStream`` with ``format("kafkalog")``, with the names,
defaults and error messages of Spark's Kafka connector. Spark passes names in lower case; a program may not.
Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import describe
from pyspark_kafkalog.datasource.options.client_options import check_partition_names, group_store, wire_config
from pyspark_kafkalog.datasource.options.option_definitions import (
    BATCH,
    LOAD,
    READ_OPTIONS,
    SINK_OPTIONS,
    STREAM,
    BatchOptions,
    LoadOptions,
    SourceOptions,
    StreamOptions,
    unknown_option,
)
from pyspark_kafkalog.datasource.options.row_schema import COLUMN_TYPES
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    Committed,
    GroupOffsets,
    OffsetLimit,
    StartLimit,
    check_batch_edges,
    chosen_subscription,
)
from pyspark_kafkalog.errors import InvalidConfig, UnsafeStore
from pyspark_kafkalog.ledger.history import HistoryRange
from pyspark_kafkalog.ledger.stores.locations import open_store

log = logging.getLogger(__name__)

_PATH = "offsetsPath"
_WHY_BOTH = (
    "a load is named by loadName, and offsetsPath is the directory that keeps its offsets; give both, or "
    "neither for a read that remembers nothing"
)

S = TypeVar("S", bound=SourceOptions)

_OF_READS = {option.name.lower(): option for option in READ_OPTIONS}
_OF_SINKS = {option.name.lower(): option for option in SINK_OPTIONS}
REFUSED = {
    "kafka.auto.offset.reset": "Instead set the source option 'startingOffsets' to 'earliest' or 'latest'.",
    "kafka.key.deserializer": "Keys are binary: use DataFrame operations to decode them.",
    "kafka.value.deserializer": "Values are binary: use DataFrame operations to decode them.",
    "kafka.enable.auto.commit": "Use kafkalog.load(), or commitOffsets=stage, with loadName and offsetsPath.",
    "kafka.interceptor.classes": "Interceptors are Java classes.",
}
_ENDINGS = {
    "endingoffsets": "ending offset not valid in streaming queries",
    "endingoffsetsbytimestamp": "ending timestamp not valid in streaming queries",
    "endingtimestamp": "ending timestamp not valid in streaming queries",
}


def parse_batch_options(given: Mapping[str, str]) -> BatchOptions:
    options = _by_lower_name(given)
    _warn_of_others(options, BATCH, "batch read")
    return _batch_options(options)


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    options = _by_lower_name(given)
    _warn_of_others(options, STREAM, "stream")
    return _stream_options(options)


def parse_either_options(given: Mapping[str, str]) -> SourceOptions:
    """Options valid for a batch or a stream: Spark asks for the schema of both alike."""
    options = _by_lower_name(given)
    parsers: list[Callable[[Mapping[str, str]], SourceOptions]] = [_batch_options, _stream_options]
    if any(key in _OF_READS and _OF_READS[key].use == (STREAM,) for key in options):
        parsers.reverse()
    likely, other = parsers
    try:
        return likely(options)
    except InvalidConfig as e:
        try:
            return other(options)
        except InvalidConfig:
            raise e from None


def _batch_options(given: Mapping[str, str]) -> BatchOptions:
    options = _parsed(BatchOptions, given, (BATCH, LOAD))
    start = _start(options)
    end: OffsetLimit = options.ending_timestamp or options.ending_timestamps or options.ending_offsets
    check_batch_edges(start, end)
    options = replace(options, end=end, **_derived(options, given, start, end))
    return replace(options, load=check_load(options, given))


def _stream_options(given: Mapping[str, str]) -> StreamOptions:
    _refuse_in_streams(given)
    options = _parsed(StreamOptions, given, (STREAM,))
    start = _start(options)
    if isinstance(start, Committed):
        raise InvalidConfig(
            "startingOffsets=commit:N is for batches; startingOffsets=file:<offsetsPath>/<loadName>/offsets "
            "begins a stream where the last load ended"
        )
    options = replace(options, **_derived(options, given, start))
    least, most = options.min_offsets, options.max_offsets
    if least is not None and most is not None and least > most:
        raise InvalidConfig(
            f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
        )
    if options.per_broker and (least or most):
        raise InvalidConfig(
            f"{'min' if least else 'max'}OffsetsPerTrigger has no meaning with protocol=0.7: offsets of "
            "Kafka 0.7 are positions in bytes, and do not tell how many messages lie between them"
        )
    if options.commit_offsets == "stage":
        raise InvalidConfig(
            "commitOffsets=stage has no meaning in a stream, whose checkpoint keeps its position; "
            "commitOffsets=group commits to kafka.group.id"
        )
    if options.commits_group and options.group_id is None:
        raise InvalidConfig(
            "commitOffsets=group needs kafka.group.id: the group to which the stream's offsets are committed"
        )
    place = _place(
        options.stream_name, options.offsets_path, "streamName",
        "streamName is the name under which offsetsPath, a directory, keeps where the stream began; give "
        "both or neither",
    )  # fmt: skip
    return replace(options, start_place=place)


def _parsed(cls: type[S], given: Mapping[str, str], uses: tuple[str, ...]) -> S:
    items = {item.name.lower(): item for item in describe(cls) if set(uses) & set(item.use)}
    return cls(
        **{items[key].field: items[key].read(text, "option") for key, text in given.items() if key in items}
    )


def _derived(
    options: SourceOptions, given: Mapping[str, str], start: StartLimit, *limits: OffsetLimit
) -> dict[str, Any]:
    subscription = chosen_subscription(options.assign, options.subscribe, options.subscribe_pattern)
    wire = wire_config(options, given)
    options = replace(options, wire=wire)
    check_partition_names(subscription, start, *limits, per_broker=options.per_broker)
    if options.columns is not None and "innerIndex" in options.columns and not options.per_broker:
        raise InvalidConfig(f"columns are some of {', '.join(COLUMN_TYPES)}; got '{given['columns']}'")
    store = group_store(options, given, wire)
    return {"subscription": subscription, "start": start, "wire": wire, "group_store": store}


def _start(options: SourceOptions) -> StartLimit:
    by_time = options.starting_timestamp or options.starting_timestamps
    if by_time is None and isinstance(options.starting_offsets, GroupOffsets) and options.group_id is None:
        raise InvalidConfig(
            "startingOffsets=group needs kafka.group.id: the group whose committed offsets are meant"
        )
    return by_time or options.starting_offsets


def _by_lower_name(given: Mapping[str, str]) -> dict[str, str]:
    for name in given:
        key = name.lower()
        if (refused := REFUSED.get(f"kafka.{key.removeprefix('kafka.')}")) is not None:
            raise InvalidConfig(f"Kafka option '{name}' is not supported. {refused}")
        if key not in _OF_READS and key not in _OF_SINKS and not key.startswith("kafka."):
            raise unknown_option(name, READ_OPTIONS, ConsumerConfig)
    return {key.lower(): value for key, value in given.items()}


def _warn_of_others(options: Mapping[str, str], use: str, read: str) -> None:
    for key in options:
        option = _OF_READS.get(key)
        if option is not None and option.use == (STREAM if use == BATCH else BATCH,):
            log.warning("option %s has no meaning in a %s and is ignored", option.name, read)
        elif option is None and key in _OF_SINKS:
            log.warning("option %s has no meaning in a read and is ignored", _OF_SINKS[key].name)


def _refuse_in_streams(given: Mapping[str, str]) -> None:
    for key in given:
        if key in _ENDINGS:
            raise InvalidConfig(f"{_ENDINGS[key]}: {_OF_READS[key].name} is given, and a stream has no end")
        if key in _OF_READS and _OF_READS[key].use == (LOAD,):
            raise InvalidConfig(
                f"{_OF_READS[key].name} has no meaning in a stream: loads are batches, and a stream's "
                "checkpoint keeps its position. streamName and offsetsPath keep where it began"
            )


# --- combinations of load options


def check_load(options: BatchOptions, given: Collection[str]) -> LoadOptions | None:
    """The load that the read belongs to; None without a load name. ``given`` are names in lower case."""
    place = _place(options.load_name, options.offsets_path, "loadName", _WHY_BOTH)
    commit, plan = options.commit_offsets, options.load_plan
    if place is None:
        _refuse_without_a_load(given, commit)
        return None
    if options.per_task > 1:
        raise InvalidConfig(
            "topicPartitionsPerTask is not for loads: each of their tasks leaves a receipt for its range"
        )
    if options.load_run and plan is None:
        raise InvalidConfig(
            "loadRun is up to 64 letters, digits and '-', and is given with loadPlan only; loadPlan is "
            "missing"
        )
    if plan is not None and commit != "none":
        raise InvalidConfig(
            f"loadPlan={plan} reads a plan that kafkalog.load() commits, so commitOffsets is none; "
            f"got '{commit}'. Leave one of the two out"
        )
    if options.commit_token and commit == "none":
        raise InvalidConfig(
            "commitToken is given with commitOffsets=stage or group, as kafkalog.commit_on_success() gives it"
        )
    if commit == "group" and options.group_id is None:
        raise InvalidConfig(
            "commitOffsets=group needs kafka.group.id: the group to which the load's offsets are also "
            "committed. commitOffsets=stage does without one"
        )
    from pyspark_kafkalog.ledger.ledger import Ledger  # reads without a load need not import it

    location, name = place
    # Refuses an impossible ledger here, not when the first action runs.
    Ledger.at(location, name)
    history = _history(options, given)
    from_commit = isinstance(options.starting_offsets, Committed)
    if (history is not None or from_commit) and (plan is not None or commit != "none"):
        raise InvalidConfig(
            "startingOffsets=commit:N, asOf and between read what earlier loads read, and are no load: leave "
            f"commitOffsets={commit} out. `kafkalog rewind` makes the next load begin at an earlier one"
        )
    if options.per_broker and options.max_load_records is not None:
        raise InvalidConfig(
            "maxRecordsPerLoad has no meaning with protocol=0.7: offsets of Kafka 0.7 are positions in "
            "bytes. maxBytesPerLoad limits a load"
        )
    return LoadOptions(
        name, location, commit, options.on_pending_plan, options.on_topic_recreated, plan, options.load_run,
        history, from_commit, options.max_load_records, options.max_load_bytes,
        options.commit_token,
    )  # fmt: skip


def _history(options: BatchOptions, given: Collection[str]) -> HistoryRange | None:
    if options.between is not None and options.as_of is not None:
        raise InvalidConfig("between and asOf say different things: give one of them")
    chosen = options.between or options.as_of
    if chosen is not None:
        for option in ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"):
            if option.lower() in given:
                name = "between" if options.as_of is None else "asOf"
                raise InvalidConfig(f"{name} says which offsets are read, so leave {option} out")
    return chosen


def _refuse_without_a_load(given: Collection[str], commit: str) -> None:
    if commit != "none":
        raise InvalidConfig(
            f"commitOffsets={commit} needs loadName, the name of the load, and offsetsPath, the directory "
            "that keeps its offsets"
        )
    for option in (
        "onPendingPlan", "onTopicRecreated", "loadPlan", "loadRun", "asOf", "between", "maxRecordsPerLoad",
        "maxBytesPerLoad", "commitToken",
    ):  # fmt: skip
        if option.lower() in given:
            raise InvalidConfig(
                f"{option} has no meaning without loadName and offsetsPath; give them as well"
            )


def _place(name: str | None, path: str | None, name_option: str, why_both: str) -> tuple[str, str] | None:
    for option, text in ((name_option, name), (_PATH, path)):
        if text == "":
            raise InvalidConfig(
                f"{option} is empty: give {name_option}, a name, and {_PATH}, its directory, or leave both "
                "out"
            )
    if name is None and path is None:
        return None
    if name is None or path is None:
        present, missing = (_PATH, name_option) if path else (name_option, _PATH)
        raise InvalidConfig(f"{present} is given and {missing} is not: {why_both}")
    if not path.startswith("/") and ":/" not in path:
        raise InvalidConfig(
            f"{_PATH} is '{path}', a relative path: drivers, tasks and Spark Connect sessions have different "
            "working directories. Give an absolute path"
        )
    try:
        # Refuses an impossible store here, not when the first action runs.
        return open_store(path).location, name
    except UnsafeStore as e:
        raise UnsafeStore(f"{_PATH}: {e}") from None
