"""The topics, partitions and offsets that the options name. Pure. JSON forms and error messages match Spark's
Kafka connector: users know them, and search for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

import msgspec

from pyspark_kafkalog.config.definition import INT_MAX, LONG_MAX
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.history import parse_commit
from pyspark_kafkalog.types import EARLIEST_OFFSET, LATEST_OFFSET, NO_BROKER, TopicPartition
from pyspark_kafkalog.zookeeper.topic_filters import java_regex


class Assign(msgspec.Struct, frozen=True):
    partitions: tuple[TopicPartition, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(p.topic for p in self.partitions)


class Subscribe(msgspec.Struct, frozen=True):
    topics: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.topics)


class SubscribePattern(msgspec.Struct, frozen=True):
    """Every partition of the topics whose whole name matches; internal topics do not count."""

    pattern: str
    """In Java's syntax."""

    def matches(self, topic: str) -> bool:
        return java_regex(self.pattern).fullmatch(topic) is not None


Subscription = Assign | Subscribe | SubscribePattern


def covers(subscription: Subscription, partition: TopicPartition) -> bool:
    if isinstance(subscription, Assign):
        return partition in subscription.partitions
    if isinstance(subscription, Subscribe):
        return partition.topic in subscription.topics
    return subscription.matches(partition.topic)


def chosen_subscription(
    assign: Assign | None, subscribe: Subscribe | None, pattern: SubscribePattern | None
) -> Subscription:
    given = [one for one in (assign, subscribe, pattern) if one is not None]
    if len(given) == 1:
        return given[0]
    which = "Only one" if given else "One"
    can = "can" if given else "must"
    raise InvalidConfig(
        f"{which} of the following options {can} be specified for Kafka source: subscribe, subscribepattern, "
        "assign. See the docs for more details."
    )


def parse_topics(text: str) -> Subscribe:
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise InvalidConfig(
            f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'"
        )
    return Subscribe(topics)


def parse_pattern(text: str) -> SubscribePattern:
    if not text.strip():
        raise InvalidConfig(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{text}'"
        )
    pattern = text.strip()
    try:
        java_regex(pattern)
    except ValueError as e:
        raise InvalidConfig(
            f"subscribePattern '{pattern}' is not a regular expression that means the same in Java and in "
            f"Python: {e}"
        ) from e
    return SubscribePattern(pattern)


OffsetsByPartition = dict[TopicPartition, int]

_WORDS = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}
_PARTITION = re.compile("(?:([0-9]{1,10})-)?([0-9]{1,10})")
_WORD_OF = {offset: word for word, offset in _WORDS.items()}


class Edge(msgspec.Struct, frozen=True):
    """The beginning or the end of every partition: `EARLIEST_OFFSET` or `LATEST_OFFSET`."""

    offset: int


class SpecificOffsets(msgspec.Struct, frozen=True):
    partitions: Mapping[TopicPartition, int]
    topics: Mapping[str, int] = msgspec.field(default_factory=dict)


class GlobalTimestamp(msgspec.Struct, frozen=True):
    """The first record at or after ``timestamp_ms`` of every partition."""

    timestamp_ms: int


class PartitionTimestamps(msgspec.Struct, frozen=True):
    """The first record at or after each partition's own time, in milliseconds."""

    timestamps: Mapping[TopicPartition, int]


class GroupOffsets(msgspec.Struct, frozen=True):
    """The committed offsets of the group ``kafka.group.id``."""


class OffsetFiles(msgspec.Struct, frozen=True):
    directory: str


class Committed(msgspec.Struct, frozen=True):
    """The end of a load's commit ``number``; ``offsets`` is None until its ledger was read."""

    number: int
    offsets: Mapping[TopicPartition, int] | None = None


OffsetLimit = Edge | SpecificOffsets | GlobalTimestamp | PartitionTimestamps
StartLimit = OffsetLimit | GroupOffsets | OffsetFiles | Committed

EARLIEST = Edge(EARLIEST_OFFSET)
LATEST = Edge(LATEST_OFFSET)


def is_reproducible(limit: StartLimit) -> bool:
    """Whether a limit always resolves to the same offsets, apart from retention."""
    if isinstance(limit, SpecificOffsets):
        return LATEST_OFFSET not in {*limit.topics.values(), *limit.partitions.values()}
    return limit == EARLIEST


def parse_start(option: str, text: str) -> Edge | SpecificOffsets | GroupOffsets | OffsetFiles | Committed:
    """Like `parse_offsets`, and also ``group``, ``file:<directory>`` or ``commit:<number>``."""
    word = text.strip()
    if word.lower() == "group":
        return GroupOffsets()
    if word[:7].lower() == "commit:":
        return Committed(parse_commit(option, word))
    if word[:5].lower() != "file:":
        return parse_offsets(option, text, others=', "group", "file:<directory>", "commit:<number>"')
    directory = re.sub(r"^//(localhost)?(?=/)", "", word[5:])
    if not directory:
        raise InvalidConfig(f"{option}=file:<directory> lacks the directory that holds the part-* files")
    return OffsetFiles(directory)


def parse_offsets(option: str, text: str, others: str = "") -> Edge | SpecificOffsets:
    """``earliest``, ``latest``, or ``{"topic": {"0": 23, "1": -1}, "other": "earliest"}``; any case."""
    word = text.strip().lower()
    if word in _WORDS:
        return Edge(_WORDS[word])
    partitions: OffsetsByPartition = {}
    topics: dict[str, int] = {}
    expected = (
        f'{option} is "earliest", "latest"{others} or JSON like '
        '{"topicA":{"0":23,"1":-1},"topicB":"earliest"}; with protocol=0.7 {"topicA":{"1-0":23}}'
    )
    for topic, value in _json_object(expected, text).items():
        if isinstance(value, str) and value.strip().lower() in _WORDS:
            topics[topic] = _WORDS[value.strip().lower()]
            continue
        for partition, offset in _by_partition(expected, topic, value).items():
            if offset < EARLIEST_OFFSET:
                raise InvalidConfig(f"{expected}; got {offset} for {partition}")
            partitions[partition] = offset
    return SpecificOffsets(partitions, topics)


def parse_partition_timestamps(option: str, text: str) -> PartitionTimestamps:
    expected = f'{option} is JSON like {{"topicA":{{"0":1700000000000,"1":1700000000000}}}}, in milliseconds'
    found: OffsetsByPartition = {}
    for topic, value in _json_object(expected, text).items():
        found.update(_by_partition(expected, topic, value))
    for partition, timestamp in found.items():
        if timestamp < 0:
            raise InvalidConfig(f"{expected}; got {timestamp} for {partition}")
    return PartitionTimestamps(found)


def parse_timestamp(option: str, text: str) -> GlobalTimestamp:
    if not re.fullmatch(r"\s*[0-9]{1,19}\s*", text) or int(text) > LONG_MAX:
        raise InvalidConfig(
            f"{option}: Expected a single long value, got {text}; it is a time in milliseconds since the "
            "epoch, such as 1700000000000 (2023-11-14 22:13:20 UTC)"
        )
    return GlobalTimestamp(int(text))


def parse_assign(text: str) -> Assign:
    """The partitions of ``{"topicA": [0, 1]}``, or of 0.7 ``{"topicA": ["<broker>-0"]}``, sorted."""
    expected = 'assign is JSON like {"topicA":[0,1]}; with protocol=0.7 {"topicA":["1-0","2-0"]}'
    partitions: set[TopicPartition] = set()
    for topic, numbers in _json_object(expected, text if text.strip() else "{}").items():
        named = [_named(topic, n) for n in numbers] if isinstance(numbers, list) else [None]
        if None in named:
            raise InvalidConfig(f"{expected}; got {numbers!r} for {topic!r}")
        partitions.update(partition for partition in named if partition is not None)
    if not partitions:
        raise InvalidConfig(
            f"No topicpartitions to assign as specified value for option 'assign' is '{text}'. {expected}"
        )
    return Assign(tuple(sorted(partitions)))


def _json_object(expected: str, text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidConfig(f"Expected {expected}; got {text!r}")
    return value


def _by_partition(expected: str, topic: str, value: object) -> OffsetsByPartition:
    if not isinstance(value, dict):
        raise InvalidConfig(f"{expected}; got {value!r} for topic {topic!r}")
    found: OffsetsByPartition = {}
    for key, number in value.items():
        partition = partition_named(topic, key)
        if partition is None or type(number) is not int or abs(number) > LONG_MAX:
            raise InvalidConfig(f"{expected}; got {{{key!r}: {number!r}}} for topic {topic!r}")
        found[partition] = number
    return found


def partition_named(topic: str, name: str) -> TopicPartition | None:
    """The partition named ``<number>``, or in 0.7 ``<broker>-<number>``; None for other names."""
    found = _PARTITION.fullmatch(name)
    if found is None:
        return None
    broker, number = NO_BROKER if found[1] is None else int(found[1]), int(found[2])
    return TopicPartition(topic, number, broker) if max(broker, number) <= INT_MAX else None


def _named(topic: str, name: object) -> TopicPartition | None:
    if type(name) is int:
        return TopicPartition(topic, name) if 0 <= name <= INT_MAX else None
    return partition_named(topic, name) if isinstance(name, str) and "-" in name else None


def check_order(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    resolved: bool,
    what: str = "offset",
) -> None:
    """Refuse a range that ends before it starts, ignoring placeholders. ``what`` names the numbers."""
    if set(starts) != set(ends):
        raise InvalidConfig(
            f"The specified start {what} and end {what} should have the same topic-partitions. "
            f"Start: {listed(starts)}. End: {listed(ends)}"
        )
    kind, of_end = ("resolved", "resolved ") if resolved else ("specified", "")  # Spark's own words
    for partition, start in sorted(starts.items()):
        end = ends[partition]
        if 0 <= end < start:
            raise InvalidConfig(
                f"The {kind} start {what} {start} is greater than the {of_end}end {what} {end} for topic "
                f"{partition.topic} partition {partition.number}"
            )


def check_batch_edges(start: StartLimit, end: OffsetLimit) -> None:
    """As in Spark's connector, a single time for all partitions is not compared."""
    _refuse_edge(start, LATEST_OFFSET, "starting offset", "startingOffsets")
    _refuse_edge(end, EARLIEST_OFFSET, "ending offset", "ending offset")
    if isinstance(start, PartitionTimestamps) and isinstance(end, PartitionTimestamps):
        check_order(start.timestamps, end.timestamps, resolved=False, what="timestamp")


def _refuse_edge(limit: StartLimit, edge: int, what: str, what_of_one: str) -> None:
    word = _WORD_OF[edge]
    if limit == Edge(edge):
        raise InvalidConfig(f"{what} can't be {word} for batch queries on Kafka")
    if isinstance(limit, SpecificOffsets):
        named = [*limit.topics.items(), *((str(p), offset) for p, offset in limit.partitions.items())]
        for of, offset in named:
            if offset == edge:
                raise InvalidConfig(f"{what_of_one} for {of} can't be {word} for batch queries on Kafka")


def listed(partitions: Iterable[TopicPartition]) -> str:
    return "[" + ", ".join(str(p) for p in sorted(partitions)) + "]"
