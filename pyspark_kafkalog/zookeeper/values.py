"""The values of znodes: brokers, subscriptions, offsets, the cluster's id; and their text parsed. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from pyspark_kafkalog.errors import InvalidConfig, KafkaError

STATIC, WHITE_LIST, BLACK_LIST = "static", "white_list", "black_list"
"""How a consumer chooses its topics; the values in the later JSON."""

NUMBER = re.compile(r"[0-9]{1,19}")
_CLUSTER_ID = re.compile(r"[a-zA-Z0-9_-]{1,22}")
_SHOWN_CHARS = 100

MAX_PARTITIONS = 100_000
"""Limit for a topic's partitions on one broker, so that a znode's value cannot cause large allocations."""


class MalformedNode(KafkaError):
    """A znode has a value that Kafka does not write."""

    def __init__(self, what: str, data: bytes | str) -> None:
        super().__init__(f"{what} cannot be {data[:_SHOWN_CHARS]!r}")


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A live broker; ``since_ms`` is when it registered, -1 if unknown."""

    id: int
    host: str
    port: int
    since_ms: int = -1

    def __str__(self) -> str:
        return f"broker {self.id} at {self.host}:{self.port}"


class PartitionNode(NamedTuple):
    """A partition as consumers know it: its name in the registries, its broker, its number."""

    name: str
    broker: int
    number: int


class PartitionKey(NamedTuple):
    """A topic's partition by its name in the registries: ``<broker>-<n>`` in 0.7, ``<n>`` later."""

    topic: str
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A consumer's subscription: topics with their numbers of streams, or one filter with its number.

    ``streams`` maps topics, or the one expression of a filter, to the number of streams.
    """

    streams: Mapping[str, int]
    pattern: str = STATIC

    def __post_init__(self) -> None:
        if self.pattern != STATIC and (
            self.pattern not in (WHITE_LIST, BLACK_LIST) or len(self.streams) != 1
        ):
            raise InvalidConfig(f"a {self.pattern} subscription of {len(self.streams)} expressions")
        if any(count < 1 for count in self.streams.values()):
            raise InvalidConfig(f"a topic needs at least one stream: {dict(self.streams)}")
        object.__setattr__(self, "streams", MappingProxyType(dict(self.streams)))

    def chosen(self, topics: Collection[str]) -> dict[str, int]:
        """Streams by topic; of a filter, for each match in ``topics`` (`InvalidConfig`: a bad one)."""
        if self.pattern == STATIC:
            return dict(self.streams)
        ((text, count),) = self.streams.items()
        passes = _topic_filter(text)
        wanted = self.pattern == WHITE_LIST
        return {topic: count for topic in topics if passes(topic) is wanted}


def write_cluster_id(cluster_id: str) -> bytes:
    """The value of ``/cluster/id``."""
    return json_bytes({"version": "1", "id": cluster_id})


def read_cluster_id(data: bytes) -> str:
    """The id in ``/cluster/id``, in JSON or as plain text."""
    text = text_of(data, "a cluster id").strip()
    if text.startswith("{"):
        text = str(json_object(text, "a cluster id").get("id") or "")
    if not _CLUSTER_ID.fullmatch(text):
        raise MalformedNode("a cluster id of up to 22 letters, digits, - and _", data)
    return text


def read_offset(data: bytes) -> int:
    return number_of(data, "an offset")


def _topic_filter(text: str) -> Callable[[str], bool]:
    """0.7's syntax of a filter: commas mean "or", blanks and quotes around it are ignored."""
    expression = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        compiled = re.compile(expression)
    except re.error as e:
        raise InvalidConfig(f"{text!r} is not a regular expression for topics: {e}") from e
    return lambda topic: compiled.fullmatch(topic) is not None


def subscription_of(counts: Mapping[str, Any], pattern: object, data: bytes) -> Subscription:
    """The subscription with these counts; `MalformedNode` with ``data`` if they are invalid."""
    if not isinstance(pattern, str) or not all(is_count(count) for count in counts.values()):
        raise MalformedNode("a subscription", data)
    try:
        return Subscription(counts, pattern)
    except InvalidConfig:
        raise MalformedNode("a subscription", data) from None


def json_bytes(fields: Mapping[str, object]) -> bytes:
    """JSON as Kafka writes it: without blanks."""
    return json.dumps(fields, separators=(",", ":")).encode()


def json_object(text: str, what: str) -> dict[str, Any]:
    """The JSON object in ``text``; ``what`` is for the error."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MalformedNode(what, text)
    return found


def text_of(data: bytes, what: str) -> str:
    """``data`` as UTF-8; ``what`` is for the error."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MalformedNode(what, data) from None


def number_of(data: bytes, what: str) -> int:
    """The decimal number in ``data``; ``what`` is for the error."""
    text = text_of(data, what).strip()
    if not NUMBER.fullmatch(text):
        raise MalformedNode(what, data)
    return int(text)


def is_count(value: object) -> bool:
    """Whether a JSON value is a whole number of 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_port(text: str) -> bool:
    """Whether ``text`` is a port number."""
    return bool(NUMBER.fullmatch(text)) and 1 <= int(text) <= 65535
