"""Topics, and options to read them with, as Hypothesis draws them; `RandomTopic` writes one to a cluster."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hypothesis import strategies as st

from pyspark_kafkalog import create_partitions
from tests.support.datasource.both_connectors import ParityTopic
from tests.support.foreign.foreign_face import CODECS, WAIT_SECONDS, Message

FIRST = 1_700_000_000_000
"""No record is older, in milliseconds."""

_SPAN = 40
_MOMENT = st.integers(FIRST - 2, FIRST + _SPAN + 4)

Ending = Literal["none", "committed", "aborted", "open"]
"""How a transaction ended; none: the records are in no transaction."""


@dataclass(frozen=True)
class Written:
    """What one producer writes to a partition at once."""

    partition: int
    codec: str
    messages: Sequence[Message]
    ending: Ending

    @property
    def offset_count(self) -> int:
        """How many offsets it takes up, the marker's too."""
        return len(self.messages) + (self.ending in ("committed", "aborted"))


@dataclass(frozen=True)
class Content:
    """A topic before it is written."""

    partitions: int
    written: Sequence[Written]
    broker_time: bool
    deleted: Mapping[int, int]
    """By partition, how many offsets from the beginning are gone."""

    def end(self, partition: int) -> int:
        """The offset that the next record of a partition gets."""
        return sum(w.offset_count for w in self.written if w.partition == partition)

    def stable_end(self, partition: int) -> int:
        """Where those stop who read committed: at the first transaction that is open."""
        reached = 0
        for each in self.written:
            if each.partition == partition:
                if each.ending == "open":
                    break
                reached += each.offset_count
        return reached


class RandomTopic(ParityTopic):
    """A topic that holds what was drawn: its ``content``."""

    content: Content

    @classmethod
    def of(cls, servers: str, name: str, content: Content) -> RandomTopic:
        """Make it and write it."""
        settings = {"message.timestamp.type": "LogAppendTime"} if content.broker_time else {}
        topic = cls.make(servers, name, content.partitions, settings)
        topic.content = replace(content, written=[])
        topic.write(content.written)
        if content.deleted:
            topic.delete_before(**{f"p{p}": offset for p, offset in content.deleted.items()})
        return topic

    def write(self, written: Sequence[Written]) -> None:
        """More records, in this order; all can see them when this returns."""
        for each in written:
            if each.ending == "none":
                self.add(each.partition, each.messages, each.codec)
            elif each.ending == "open":
                self.leave_open(each.partition, each.messages)
            else:
                part = (each.partition, each.messages, each.ending == "committed")
                self.add_transactions(part, codec=each.codec)
        self.content = replace(self.content, written=[*self.content.written, *written])
        self._await_markers()

    def grow(self, partitions: int) -> None:
        """Have so many partitions."""
        if partitions > self.content.partitions:
            create_partitions(self.servers, {self.name: partitions})
            self.await_partitions(partitions)
            self.content = replace(self.content, partitions=partitions)

    def _await_markers(self) -> None:
        # A broker writes them a moment after the producer was told that its transaction has ended.
        deadline = time.monotonic() + WAIT_SECONDS
        for partition in range(self.content.partitions):
            while (end := self.end(partition)) != self.content.stable_end(partition):
                assert time.monotonic() < deadline, f"{self.name}-{partition} ends at {end}: {self.content}"
                time.sleep(0.02)


def _or_null(strategy: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes | None]:
    return st.none() | strategy


_bytes = _or_null(st.binary(max_size=20) | st.just(b"long " * 300))
_headers = st.lists(st.tuples(st.sampled_from(["a", "b", "naïve", ""]), _bytes), max_size=3).map(tuple)
_messages = st.lists(
    st.builds(Message, _bytes, _bytes, st.integers(FIRST, FIRST + _SPAN), _headers | st.just(())),
    min_size=1,
    max_size=25,
)


def written(partitions: int, endings: Sequence[Ending], most: int = 5) -> st.SearchStrategy[list[Written]]:
    """Up to ``most`` writes to a topic of so many partitions."""
    one = st.builds(
        Written,
        st.integers(0, partitions - 1),
        st.sampled_from(CODECS),
        _messages,
        st.sampled_from(endings),
    )
    return st.lists(one, max_size=most)


@st.composite
def contents(draw: st.DrawFn, *, transactions: bool) -> Content:
    """A topic; with ``transactions`` also what our broker has none of yet: those, and deleted records."""
    endings: Sequence[Ending] = (
        ("none", "none", "committed", "aborted", "open") if transactions else ("none",)
    )
    partitions = draw(st.integers(1, 3))
    made = Content(partitions, draw(written(partitions, endings)), draw(st.booleans()), {})
    if not transactions:
        return made
    # Records of an open transaction are never deleted.
    gone = {
        p: draw(st.integers(1, made.stable_end(p)))
        for p in range(partitions)
        if made.stable_end(p) and draw(st.integers(0, 3)) == 0
    }
    return Content(partitions, made.written, made.broker_time, gone)


Topics = Mapping[str, Content]
"""By name."""

Chosen = Sequence[tuple[str, int]]
"""Topics and partitions."""


@st.composite
def subscriptions(draw: st.DrawFn, topics: Topics) -> tuple[dict[str, object], Chosen]:
    """One of the three ways to name what is read, and the partitions that it names.

    The names of ``topics`` are such that what they have in common begins no other topic.
    """
    everything = [(name, p) for name, content in topics.items() for p in range(content.partitions)]
    way = draw(st.sampled_from(["subscribe", "subscribePattern", "assign"]))
    if way == "subscribe":
        return {way: " , ".join(topics)}, everything
    if way == "subscribePattern":
        return {way: "|".join(re.escape(name).replace("\\-", "-") for name in topics)}, everything
    chosen = sorted(draw(st.sets(st.sampled_from(everything), min_size=1)))
    return {way: _by_topic({each: each[1] for each in chosen}, listed=True)}, chosen


@st.composite
def edges(
    draw: st.DrawFn,
    side: Literal["starting", "ending"],
    topics: Topics,
    chosen: Chosen,
    *,
    isolation: str,
    words: Sequence[str],
    placeholders: Sequence[int],
) -> dict[str, object]:
    """Where a read begins or ends: said in one way, or in two of which one counts. Not all can be read."""

    def place(topic: str, partition: int) -> st.SearchStrategy[int]:
        # Behind what can be read both would wait in vain until they give up.
        content = topics[topic]
        end = content.stable_end(partition) if isolation == "read_committed" else content.end(partition)
        return st.integers(0, end) | st.sampled_from(placeholders)

    def by_partition(values: Callable[[str, int], st.SearchStrategy[int]]) -> str:
        return _by_topic({each: draw(values(*each)) for each in chosen})

    found: dict[str, object] = {}
    for form in draw(st.sets(st.sampled_from(["word", "offsets", "times", "time"]), max_size=2)):
        if form == "word":
            found.setdefault(f"{side}Offsets", draw(st.sampled_from(words)))
        elif form == "offsets":
            found[f"{side}Offsets"] = by_partition(place)
        elif form == "times":
            found[f"{side}OffsetsByTimestamp"] = by_partition(lambda *_: _MOMENT)
        else:
            found[f"{side}Timestamp"] = str(draw(_MOMENT))
    return found


@st.composite
def _shared(draw: st.DrawFn) -> dict[str, object]:
    return {
        "includeHeaders": draw(st.sampled_from(["true", "false"])),
        "failOnDataLoss": draw(st.sampled_from(["true", "false"])),
        "kafka.isolation.level": draw(st.sampled_from(["read_committed", "read_uncommitted"])),
        "startingOffsetsByTimestampStrategy": draw(st.sampled_from(["error", "latest", "latest"])),
    }


@st.composite
def batch_options(draw: st.DrawFn, topics: Topics) -> dict[str, object]:
    """Of one batch read."""
    subscription, chosen = draw(subscriptions(topics))
    shared = draw(_shared())
    isolation = str(shared["kafka.isolation.level"])
    minimum = draw(st.none() | st.integers(1, 15))
    # Without a minimum that divides, Spark's connector forgets the limit (test_parity_batch.py).
    divides = minimum is not None and minimum > len(chosen)
    told = {
        **subscription,
        **shared,
        **draw(edges("starting", topics, chosen, isolation=isolation, words=["earliest"], placeholders=[-2])),
        **draw(edges("ending", topics, chosen, isolation=isolation, words=["latest"], placeholders=[-1])),
        "minPartitions": minimum,
        "maxRecordsPerPartition": draw(st.none() | st.integers(1, 20)) if divides else None,
    }
    return _given(told)


@st.composite
def stream_options(draw: st.DrawFn, topics: Topics) -> dict[str, object]:
    """Of one query."""
    subscription, chosen = draw(subscriptions(topics))
    shared = draw(_shared())
    words = ["earliest", "latest"]
    isolation = str(shared["kafka.isolation.level"])
    start = edges("starting", topics, chosen, isolation=isolation, words=words, placeholders=[-2, -1])
    most = draw(st.none() | st.integers(5, 60))
    told = {
        **subscription,
        **shared,
        **draw(start),
        "maxOffsetsPerTrigger": most,
        # With a limit, Spark's connector leaves the rest of Trigger.AvailableNow (test_parity_streams.py).
        "minOffsetsPerTrigger": draw(st.none() | st.integers(1, 60)) if most is None else None,
        "minPartitions": draw(st.none() | st.integers(1, 9)),
        "maxRecordsPerPartition": draw(st.none() | st.integers(3, 20)),
    }
    return _given(told)


def _given(told: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in told.items() if value is not None}


def _by_topic(values: Mapping[tuple[str, int], int], *, listed: bool = False) -> str:
    """JSON as the options have it: of numbers by partition, or ``listed`` of the numbers alone."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), value in values.items():
        found.setdefault(topic, {})[str(partition)] = value
    return json.dumps({topic: list(of.values()) for topic, of in found.items()} if listed else found)
