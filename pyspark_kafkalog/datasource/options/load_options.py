"""The options that name a load, or the place where a stream keeps its start, as checked values. Pure.

What they mean: docs/loads.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.history import HistoryRange, parse_as_of, parse_between
from pyspark_kafkalog.ledger.ledger_store import open_store
from pyspark_kafkalog.ledger.load_errors import UnsafeStore

_NUMBER_MAX = 99_999_999
"""Plans have eight digits."""
_WHY_BOTH = (
    "a load is named by loadName, and offsetsPath is the directory that keeps its offsets; give both, or "
    "neither for a read that remembers nothing"
)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which load a read belongs to, and what it may do to it."""

    name: str
    offsets_path: str
    """An absolute path."""
    commit: str
    """``none``, ``stage`` or ``group``."""
    on_pending: str
    """``replay``, ``fail`` or ``discard``."""
    on_recreated: str
    """``fail``, ``earliest`` or ``skip``."""
    plan: int | None
    """The plan to read, which someone else commits."""
    run: str = ""
    """Who that is: it asks the tasks' marks whether all was read. Empty where nobody asks."""
    former: HistoryRange | None = None
    """The former loads that are read again; None where it is the next one."""
    from_commit: bool = False
    """Whether it is read from one of the load's commits on, which is no load either."""

    @property
    def looks_back(self) -> bool:
        """Whether this reads what the ledger says of former loads, and is no load itself."""
        return self.from_commit or self.former is not None

    @property
    def commits(self) -> bool:
        """Whether the last task of a read commits the load."""
        return self.commit != "none"


def parse_load_options(
    options: Mapping[str, str], choice: Callable[[str, tuple[str, ...]], str]
) -> LoadOptions | None:
    """The load that the read belongs to; None without a load name. Keys are in lower case.

    ``choice(option, allowed)`` reads an option that is one of several words.

    Raises:
        InvalidConfig: a value is wrong, or options are given that mean something only together.
        UnsafeStore: ``offsetsPath`` is a place where no ledger can be kept.
    """
    place = kept_place(options, "loadName", _WHY_BOTH)
    commit = choice("commitOffsets", ("none", "stage", "group"))
    on_pending = choice("onPendingPlan", ("replay", "fail", "discard"))
    on_recreated = choice("onTopicRecreated", ("fail", "earliest", "skip"))
    plan = _plan(options.get("loadplan"))
    run = _run(options.get("loadrun", ""), plan)
    if place is None:
        _refuse_without_a_load(options, commit)
        return None
    if plan is not None and commit != "none":
        raise InvalidConfig(
            f"loadPlan={plan} reads a plan that kafkalog.load() commits, so commitOffsets is none; "
            f"got '{commit}'. Leave one of the two out"
        )
    if commit == "group" and not options.get("kafka.group.id", "").strip():
        raise InvalidConfig(
            "commitOffsets=group needs kafka.group.id: the group that is told the load's next offsets. "
            "commitOffsets=stage does without one"
        )
    from pyspark_kafkalog.ledger.ledger import Ledger  # what reads without a load can do without

    location, name = place
    # Refuses what cannot be a ledger's at once, and not when the first action runs.
    Ledger.at(location, name)
    former = _former(options)
    from_commit = options.get("startingoffsets", "").strip().lower().startswith("commit:")
    if (former is not None or from_commit) and (plan is not None or commit != "none"):
        raise InvalidConfig(
            "startingOffsets=commit:N, asOf and between read what was loaded formerly, and are no load: "
            f"leave commitOffsets={commit} out. `kafkalog rewind` makes the next load begin at a former one"
        )
    return LoadOptions(name, location, commit, on_pending, on_recreated, plan, run, former, from_commit)


def _former(options: Mapping[str, str]) -> HistoryRange | None:
    between, as_of = options.get("between"), options.get("asof")
    if between is None and as_of is None:
        return None
    if between is not None and as_of is not None:
        raise InvalidConfig("between and asOf say different things: give one of them")
    for option in ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"):
        if option.lower() in options:
            given = "asOf" if between is None else "between"
            raise InvalidConfig(f"{given} says which offsets are read, so leave {option} out")
    return parse_between(between) if between is not None else parse_as_of(as_of or "")


def _refuse_without_a_load(options: Mapping[str, str], commit: str) -> None:
    if commit != "none":
        raise InvalidConfig(
            f"commitOffsets={commit} needs loadName, the name of the load, and offsetsPath, the directory "
            "that keeps its offsets"
        )
    for option in ("onPendingPlan", "onTopicRecreated", "loadPlan", "loadRun", "asOf", "between"):
        if option.lower() in options:
            raise InvalidConfig(
                f"{option} has no meaning without loadName and offsetsPath; give them as well"
            )


def _plan(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"\s*[0-9]{1,8}\s*", text) or int(text) == 0:
        raise InvalidConfig(f"loadPlan is the number of a plan, 1 to {_NUMBER_MAX}; got '{text}'")
    return int(text)


def _run(text: str, plan: int | None) -> str:
    if text and (plan is None or not re.fullmatch(r"[A-Za-z0-9-]{1,64}", text)):
        raise InvalidConfig(
            f"loadRun is up to 64 letters, digits and '-', and is given with loadPlan only; got '{text}'"
        )
    return text


_PATH = "offsetsPath"


def kept_place(options: Mapping[str, str], name_option: str, why_both: str) -> tuple[str, str] | None:
    """The absolute path of ``offsetsPath``, and the name; None where neither is given.

    Keys are in lower case. ``why_both`` tells somebody who gave one of them what they are.

    Raises:
        InvalidConfig: one is given without the other, or is empty; or the path is relative.
        UnsafeStore: the path is a place where nothing can be kept.
    """
    name, path = (_text(options, option, name_option) for option in (name_option, _PATH))
    if not name and not path:
        return None
    if not name or not path:
        given, missing = (_PATH, name_option) if path else (name_option, _PATH)
        raise InvalidConfig(f"{given} is given and {missing} is not: {why_both}")
    if not path.startswith("/") and ":/" not in path:
        raise InvalidConfig(
            f"{_PATH} is '{path}', a relative path: drivers and tasks run in directories of their own, and "
            "through Spark Connect in one that goes with the session. Give the whole path, from / on"
        )
    try:
        # What cannot be a store is refused at once, and not when the first action runs.
        return open_store(path).location, name
    except UnsafeStore as e:
        raise UnsafeStore(f"{_PATH}: {e}") from None


def _text(options: Mapping[str, str], option: str, name_option: str) -> str:
    """Empty where it is not given; given, it may not be."""
    text = options.get(option.lower())
    if text is not None and not text.strip():
        raise InvalidConfig(
            f"{option} is empty: give {name_option}, a name, and {_PATH}, its directory, or leave both out"
        )
    return (text or "").strip()
