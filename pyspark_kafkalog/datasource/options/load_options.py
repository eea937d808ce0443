"""Checks what options of loads, and of the place of a stream's start, mean together: docs/loads.md. Pure."""

from __future__ import annotations

from collections.abc import Collection

from pyspark_kafkalog.datasource.options.option_definitions import (
    BatchOptions,
    LoadOptions,
    StartPlace,
    StreamOptions,
)
from pyspark_kafkalog.datasource.options.topics_and_offsets import Committed
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.history import HistoryRange
from pyspark_kafkalog.ledger.ledger_store import open_store
from pyspark_kafkalog.ledger.load_errors import UnsafeStore

_PATH = "offsetsPath"
_WHY_BOTH = (
    "a load is named by loadName, and offsetsPath is the directory that keeps its offsets; give both, or "
    "neither for a read that remembers nothing"
)


def check_load(options: BatchOptions, given: Collection[str]) -> LoadOptions | None:
    """The load that the read belongs to; None without a load name. ``given`` are names in lower case.

    Raises:
        InvalidConfig: options do not go together.
        UnsafeStore: ``offsetsPath`` is a place where no ledger can be kept.
    """
    place = _place(options.load_name, options.offsets_path, "loadName", _WHY_BOTH)
    commit, plan = options.commit_offsets, options.load_plan
    if place is None:
        _refuse_without_a_load(given, commit)
        return None
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
    if commit == "group" and options.group_id is None:
        raise InvalidConfig(
            "commitOffsets=group needs kafka.group.id: the group to which the load's offsets are also "
            "committed. commitOffsets=stage does without one"
        )
    from pyspark_kafkalog.ledger.ledger import Ledger  # reads without a load do without

    location, name = place
    # Refuses what cannot be a ledger's here, not when the first action runs.
    Ledger.at(location, name)
    history = _history(options, given)
    from_commit = isinstance(options.starting_offsets, Committed)
    if (history is not None or from_commit) and (plan is not None or commit != "none"):
        raise InvalidConfig(
            "startingOffsets=commit:N, asOf and between read what earlier loads read, and are no load: leave "
            f"commitOffsets={commit} out. `kafkalog rewind` makes the next load begin at an earlier one"
        )
    return LoadOptions(
        name, location, commit, options.on_pending_plan, options.on_topic_recreated, plan, options.load_run,
        history, from_commit,
    )  # fmt: skip


def check_start_place(options: StreamOptions) -> StartPlace | None:
    """Where the stream's start is kept; None where neither name nor path is given.

    Raises:
        InvalidConfig: one is given without the other, or is empty; or the path is relative.
        UnsafeStore: nothing can be kept there.
    """
    place = _place(
        options.stream_name, options.offsets_path, "streamName",
        "streamName is the name under which offsetsPath, a directory, keeps where the stream began; give "
        "both or neither",
    )  # fmt: skip
    return StartPlace(*place) if place is not None else None


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
    for option in ("onPendingPlan", "onTopicRecreated", "loadPlan", "loadRun", "asOf", "between"):
        if option.lower() in given:
            raise InvalidConfig(
                f"{option} has no meaning without loadName and offsetsPath; give them as well"
            )


def _place(name: str | None, path: str | None, name_option: str, why_both: str) -> tuple[str, str] | None:
    """The absolute path of ``offsetsPath``, and the name; None where neither is given."""
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
        # What cannot be a store is refused here, not when the first action runs.
        return open_store(path).location, name
    except UnsafeStore as e:
        raise UnsafeStore(f"{_PATH}: {e}") from None
