"""Which topics and partitions a read is about: the options assign, subscribe and subscribePattern. Pure."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafkalog.datasource import offsets
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition

_KEYS = ("subscribe", "subscribepattern", "assign")


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions."""

    partitions: tuple[TopicPartition, ...]

    @property
    def names(self) -> frozenset[str]:
        """The topics named."""
        return frozenset(p.topic for p in self.partitions)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Every partition of these topics."""

    topics: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """The topics named."""
        return frozenset(self.topics)


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """Every partition of the topics whose whole name matches; internal topics are not looked at."""

    pattern: str

    def matches(self, topic: str) -> bool:
        """Whether ``topic`` is read."""
        return re.fullmatch(self.pattern, topic) is not None


Subscription = Assign | Subscribe | SubscribePattern


def covers(subscription: Subscription, partition: TopicPartition) -> bool:
    """Whether a partition is among those that are meant."""
    if isinstance(subscription, Assign):
        return partition in subscription.partitions
    if isinstance(subscription, Subscribe):
        return partition.topic in subscription.topics
    return subscription.matches(partition.topic)


def parse_subscription(options: Mapping[str, str]) -> Subscription:
    """The one of the three options that is given; keys are in lower case.

    Raises:
        InvalidConfig: none or several are given, or the value names nothing.
    """
    given = [key for key in _KEYS if key in options]
    allowed = ", ".join(_KEYS)
    if not given:
        raise InvalidConfig(
            f"One of the following options must be specified for Kafka source: {allowed}. "
            "See the docs for more details."
        )
    if len(given) > 1:
        raise InvalidConfig(
            f"Only one of the following options can be specified for Kafka source: {allowed}. "
            "See the docs for more details."
        )
    value = options[given[0]]
    if given[0] == "assign":
        return Assign(tuple(offsets.parse_partitions("assign", value)))
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not topics:
            raise InvalidConfig(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{value}'"
            )
        return Subscribe(topics)
    if not value.strip():
        raise InvalidConfig(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{value}'"
        )
    return SubscribePattern(_python_pattern(value.strip()))


def _python_pattern(pattern: str) -> str:
    """Java's named groups in Python's spelling; the rest of what topics' patterns use is the same in both."""
    translated = re.sub(r"\(\?<(?![=!])", "(?P<", pattern)
    try:
        with warnings.catch_warnings():
            # Of sets in sets, as [a[b]] or [a&&b], Java and Python do not think the same.
            warnings.simplefilter("error", FutureWarning)
            re.compile(translated)
    except (re.error, FutureWarning) as e:
        raise InvalidConfig(
            f"subscribePattern '{pattern}' is no regular expression that means the same in Java and in "
            f"Python: {e}"
        ) from e
    return translated
