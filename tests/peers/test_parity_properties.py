"""Random topics, random options: Spark's connector and ours read the same, or fail for the same reason."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from kafkalog_broker.embedded import EmbeddedBroker
from tests.support.datasource.both_connectors import Answer, Both, brief, same_answers
from tests.support.datasource.random_topics import (
    RandomTopic,
    Topics,
    batch_options,
    contents,
    stream_options,
    written,
)
from tests.support.datasource.stream_runs import BothStreams, same

_numbers = itertools.count()
EXAMPLES = 8
"""Of `make interop`; `make soak` has twenty times as many."""

READS = 3
"""Of each topic, with other options."""

STREAMS = 3
RUNS = 2
"""Of each stream, on the same checkpoint; in between the topics grow."""

SEED = int(os.environ.get("KAFKALOG_SEED", "6"))

REASONS = (
    "No offset matched from request",
    "(specified|resolved) start offset .* is greater than",
    "specified start timestamp .* is greater than",
    r"[Cc]ould not read (records in offset|offsets)",
)
"""What may go wrong with options such as these, in the words of both."""


def rounds(examples: int, run: Callable[[st.DataObject], None]) -> None:
    """The same examples each time, unless the environment gives a seed."""
    # Not shrunk: each attempt takes a second, and the examples are small.
    quiet = settings(
        max_examples=examples,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    seeded(SEED)(quiet(given(st.data())(run)))()


def topics_of(data: st.DataObject, servers: str, *, transactions: bool) -> list[RandomTopic]:
    """One topic or two, which are there when this returns."""
    number = next(_numbers)
    drawn = data.draw(st.lists(contents(transactions=transactions), min_size=1, max_size=2), "topics")
    named = {f"parity-random-{number}-{i}": content for i, content in enumerate(drawn)}
    return [RandomTopic.of(servers, name, content) for name, content in named.items()]


def by_name(topics: Sequence[RandomTopic]) -> Topics:
    return {topic.name: topic.content for topic in topics}


def reason(outcome: object) -> str:
    """Why a read has failed, in a word; the whole text where that is not foreseen."""
    if not isinstance(outcome, str):
        return "none"
    return next((words for words in REASONS if re.search(words, outcome)), brief(outcome))


def read_alike(both: Both, examples: int, *, transactions: bool) -> None:
    def run(data: st.DataObject) -> None:
        topics = topics_of(data, both.servers, transactions=transactions)
        for _ in range(READS):
            options = data.draw(batch_options(by_name(topics)), "options")
            theirs, ours = both.outcomes(**options)
            assert reason(ours) == reason(theirs)
            if isinstance(theirs, Answer) and isinstance(ours, Answer):
                same_answers(theirs, ours)
        for topic in topics:
            topic.close()

    rounds(examples, run)


def streams_alike(both: Both, directory: Path, examples: int) -> None:
    def run(data: st.DataObject) -> None:
        topics = topics_of(data, both.servers, transactions=True)
        options = data.draw(stream_options(by_name(topics)), "options")
        streams = BothStreams(both, directory / str(next(_numbers)), **options)
        for step in range(RUNS):
            if step:
                grow(data, topics)
            theirs, ours = streams.outcomes()
            assert reason(ours) == reason(theirs)
            if isinstance(theirs, str) or isinstance(ours, str):
                break
            same(theirs, ours)
        for topic in topics:
            topic.close()

    rounds(examples, run)


def grow(data: st.DataObject, topics: Sequence[RandomTopic]) -> None:
    """More partitions or none, and more records."""
    for topic in topics:
        count = topic.content.partitions + data.draw(st.integers(0, 2), "new partitions")
        more = data.draw(written(count, ("none", "committed", "aborted"), most=3), "written")
        topic.grow(count)
        topic.write(more)


def test_random_topics_of_apache_kafka_are_read_the_same(both_at_kafka: Both) -> None:
    """With transactions, and with records deleted from the beginning."""
    read_alike(both_at_kafka, EXAMPLES, transactions=True)


def test_random_topics_of_our_broker_are_read_the_same(
    both_of: Callable[[str], Both], own_broker: EmbeddedBroker
) -> None:
    read_alike(both_of(own_broker.bootstrap_servers), EXAMPLES // 3, transactions=False)


def test_random_streams_are_cut_into_the_same_batches(both_at_kafka: Both, tmp_path: Path) -> None:
    streams_alike(both_at_kafka, tmp_path, STREAMS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_random_topics_are_read_the_same(both_at_kafka: Both) -> None:
    read_alike(both_at_kafka, 20 * EXAMPLES, transactions=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_random_streams_are_cut_into_the_same_batches(both_at_kafka: Both, tmp_path: Path) -> None:
    streams_alike(both_at_kafka, tmp_path, 20 * STREAMS)
