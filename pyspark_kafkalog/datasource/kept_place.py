"""Where something is kept under a name: the directory ``offsetsPath``, and the option of the name. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.ledger_store import open_store
from pyspark_kafkalog.ledger.load_errors import UnsafeStore

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
