"""A broker while scripts of raw requests run: it is asked, and its answers are kept as plain values.

A script is run for each version of its API that a broker serves, on topics and groups of its own, whose names
are the same everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any
from uuid import UUID

from msgspec import structs

from pyspark_kafkalog.protocol.api.configs import ConfigOperation
from pyspark_kafkalog.protocol.api.fetch import PartitionData
from pyspark_kafkalog.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pyspark_kafkalog.protocol.api.metadata import FindCoordinatorRequest
from pyspark_kafkalog.protocol.api.producers import InitProducerIdRequest
from pyspark_kafkalog.protocol.codec import WireStruct
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.protocol.raw_client import RawClient, batch, decode
from tests.support.until import until

NODE = 1
TRANSACTIONS = 1
"""The kind of coordinator."""

NO_ID, NEVER = UUID(int=0), UUID(int=7)

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = ConfigOperation

Answers = dict[str, Any]
"""What a broker said to each step: a tree of plain values, `CLOSED` where it closed the connection."""

CLOSED = "the connection is closed"


class Session:
    """*Not thread-safe.* One broker while scripts run: asks, and keeps the answers as plain values.

    What differs from broker to broker, whatever they do, becomes a word: ids of topics, addresses, texts.
    """

    def __init__(self, host: str, port: int, client: type[RawClient] = RawClient) -> None:
        self._address = port, host
        self._connect = client
        self._client = self._connect(*self._address)
        self._words: dict[Any, str] = {}
        self._script = ""
        self.version = 0
        self.answers: Answers = {}

    def begin(self, script: str, version: int) -> None:
        """The answers from here on are those of a script in one version of its API."""
        self._script, self.version = script, version

    def close(self) -> None:
        self._client.close()

    @property
    def name(self) -> str:
        """A name for a topic or group that no other script and version has."""
        return f"{self._script.replace(' ', '-')}-{self.version}"

    def topic(self, suffix: str = "", partitions: int = 1, **configs: str) -> str:
        """Make a topic; its properties have underscores for dots."""
        name = self.name + suffix
        made = self._client.create_topic(
            name, partitions, {key.replace("_", "."): value for key, value in configs.items()}
        )
        assert made.error_code == 0, made
        self._words[made.topic_id] = f"id of {name}"
        until(lambda: not any(self._client.offset_at(name, -1, n).error_code for n in range(partitions)))
        return name

    def id_of(self, topic: str) -> UUID:
        """The id of a topic, which the answers have as a word from here on."""
        found = self._client.topic_id(topic)
        self._words[found] = f"id of {topic}"
        return found

    def filled(self, suffix: str = "", count: int = 5, **configs: str) -> str:
        """A topic of one partition with ``count`` records, each in a batch of its own."""
        topic = self.topic(suffix, **configs)
        for number in range(count):
            made = self._client.produce(topic, batch(b"%d" % number, timestamp=1_700_000_000_000 + number))
            assert made.error_code == 0, made
        return topic

    def produce(self, topic: str, partition: int) -> None:
        """A record."""
        made = self._client.produce(topic, batch(b"r", timestamp=1_700_000_000_000), partition)
        assert made.error_code == 0, made

    def settle(self) -> None:
        """Wait until the broker coordinates groups and transactions: Kafka makes the topics for that late."""
        topic = self.topic("first")
        topics = (OffsetCommitRequestTopic(topic, (OffsetCommitRequestPartition(0, 1),)),)

        def coordinated() -> bool:
            self._client.ask(FindCoordinatorRequest("g"), 3)
            request = OffsetCommitRequest(group_id="g", topics=topics)
            codes = {self._client.ask(request, 8).topics[0].partitions[0].error_code}
            for name in (None, "first"):
                self._client.ask(FindCoordinatorRequest("first", TRANSACTIONS), 3)
                codes.add(self._client.ask(InitProducerIdRequest(name, 1000), 4).error_code)
            return codes == {0}

        until(coordinated)

    def wait(self, done: Callable[[Callable[[Any, int], Any]], bool]) -> None:
        """Ask until that is ``done``; nothing of it is kept."""
        until(lambda: done(self._client.ask))

    def pause(self) -> None:
        """Kafka has changes of a broker's properties in force a moment after it has answered."""
        time.sleep(0.2)

    def ask(
        self,
        step: str,
        request: Any,
        version: int | None = None,
        *,
        until_not: int | None = None,
        **words: str,
    ) -> Any:
        """The answer to ``request``, in the script's version unless another is given; kept under ``step``.

        It is asked again while the answer has the code ``until_not``: how long that is differs. ``words`` are
        learned for the fields of the answer with these names.
        """
        key = f"{self._script} {self.version}: {step}"
        assert key not in self.answers, key
        try:
            deadline = time.monotonic() + 10
            while True:
                answer = self._client.ask(request, self.version if version is None else version)
                again = until_not is not None and until_not in _codes(self._plain(answer))
                if not again or time.monotonic() > deadline:
                    break
                time.sleep(0.01)
        except (ConnectionError, TimeoutError):
            self.answers[key] = CLOSED
            self._client.close()
            self._client = self._connect(*self._address)
            return None
        for field, word in words.items():
            if getattr(answer, field):
                self.learn(getattr(answer, field), word)
        self.answers[key] = self._plain(answer)
        return answer

    def learn(self, value: Any, word: str) -> Any:
        """Have the answers say ``word`` for a value from here on; returns the value."""
        self._words[value] = word
        return value

    def send(self, request: Any, version: int) -> RawClient:
        """Ask from a connection of its own; `receive` gets the answer, which others may have to help on."""
        client = self._connect(*self._address)
        client.send(request, version)
        return client

    def receive(self, step: str, client: RawClient, **words: str) -> Any:
        """The answer to what was sent, kept under ``step``, as by `ask`."""
        with client:
            answer = client.receive()
        for field, word in words.items():
            self.learn(getattr(answer, field), word)
        self.answers[f"{self._script} {self.version}: {step}"] = self._plain(answer)
        return answer

    def _plain(self, value: Any, field: str = "") -> Any:
        """``value`` without what always differs. Lists of structs whose order says nothing are sorted."""
        if isinstance(value, PartitionData):
            found = {name: self._plain(item, name) for name, item in structs.asdict(value).items()}
            found["records"] = [(r.offset, r.key, r.value, r.timestamp) for r in decode(value)]
            return found
        if isinstance(value, WireStruct):
            return {name: self._plain(item, name) for name, item in structs.asdict(value).items()}
        if field == "configs" and value and hasattr(value[0], "name"):
            return {each.name: self._plain(each) for each in value}
        if isinstance(value, tuple):
            items = [self._plain(each, field) for each in value]
            return sorted(items, key=repr) if field in UNORDERED else items
        if (field in TEXTS and value not in (None, "", -1)) or (field == "session_id" and value):
            return f"a {field}"
        if isinstance(value, str) and value in self._words:
            return self._words[value]
        if isinstance(value, UUID):
            return self._words.get(value, "no id" if value == NO_ID else "another id")
        return int(value) if isinstance(value, IntEnum) else value


def _codes(tree: Any) -> set[int]:
    """All error codes in an answer."""
    if isinstance(tree, list):
        return {code for each in tree for code in _codes(each)}
    if not isinstance(tree, dict):
        return set()
    found = {value for name, value in tree.items() if name.endswith("error_code")}
    return found.union(*(_codes(value) for value in tree.values()))


TEXTS = frozenset(
    {
        "error_message", "documentation", "cluster_id", "host", "port", "log_dir", "total_bytes",
        "usable_bytes", "producer_id", "transaction_start_time_ms",
        "last_timestamp",
    }
)  # fmt: skip
"""Fields whose content says nothing where they are set at all."""

UNORDERED = frozenset(
    {
        "topics", "results", "responses", "groups", "members", "partitions", "partition_responses",
        "results_by_topic_v3_and_below", "results_by_partition",
    }
)  # fmt: skip

Script = Callable[[Session], None]

SCRIPTS: dict[str, tuple[ApiKey, Script]] = {}
"""By name: the API whose versions it is run in, and what it does."""


def script(key: ApiKey) -> Callable[[Script], Script]:
    """Add a script, which is called what its function is."""

    def add(function: Script) -> Script:
        name = function.__name__.replace("_", " ")
        assert name not in SCRIPTS, name
        SCRIPTS[name] = key, function
        return function

    return add


_SCRIPTED_UP_TO = {ApiKey.END_TXN: 4, ApiKey.TXN_OFFSET_COMMIT: 4}
"""Later ones are of transactions of version 2, in which each has an epoch of its own."""


def play(session: Session, served: Mapping[ApiKey, range]) -> Answers:
    """Run all scripts in the versions ``served``."""
    session.settle()
    for name, (key, function) in SCRIPTS.items():
        for version in served.get(key, ()):
            if version > _SCRIPTED_UP_TO.get(key, version):
                continue
            session.begin(name, version)
            function(session)
    return session.answers
