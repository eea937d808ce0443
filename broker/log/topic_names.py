"""Allowed topic names, and their form in file names. Pure.

Names since 0.8 are safe as they stand. 0.7 allows almost everything: what is not a letter, a digit, ``.``,
``_`` or ``-`` of ASCII is then written as in a URL: ``t%C3%A9`` for ``té``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

from pyspark_kafkalog.errors import InvalidTopic
from pyspark_kafkalog.protocol.v07 import check_topic

MAX_NAME_LENGTH = 249
"""Kafka's: 255 for a file name less what a partition's directory adds."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def check_name(name: str, others: Iterable[str] = ()) -> None:
    """Refuse what Kafka refuses as a topic name.

    Raises:
        InvalidTopic: empty, ``.`` or ``..``, over 249 characters, a character outside ``[a-zA-Z0-9._-]``, or
            too much like one of ``others``.
    """
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
    """Refuse what 0.7 refuses as a topic name, and what is too long for a file's name."""
    check_topic(name)
    length = len(file_name(name))
    if length > MAX_NAME_LENGTH:
        raise InvalidTopic(
            f"topic name {name!r} is of {length} characters as a file name; the limit is {MAX_NAME_LENGTH}"
        )


def collision(name: str, others: Iterable[str]) -> str | None:
    """The first of ``others`` that differs from ``name`` in ``.`` against ``_`` only.

    Kafka refuses such pairs because metric names turn both characters into one.
    """
    folded = name.replace(".", "_")
    return next((o for o in others if o != name and o.replace(".", "_") == folded), None)


def file_name(topic: str) -> str:
    """The topic's name as a part of a file's name; ASCII."""
    return quote(topic, safe="").replace("~", "%7E")


def topic_of_file(name: str) -> str | None:
    """The topic that `file_name` gave this name; None when there is none."""
    topic = unquote(name)
    return topic if topic and file_name(topic) == name else None
