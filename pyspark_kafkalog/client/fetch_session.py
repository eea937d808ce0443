"""A client's side of an incremental fetch session (KIP-227): the broker keeps what is fetched, so a request
names only what has changed since the last one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.fetch import FetchPartition, FetchResponse, FetchTopic, ForgottenTopic
from pyspark_kafkalog.types import TopicPartition

_FULL = 0
_LARGEST = 0x7FFFFFFF
_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class FetchSession:
    """*Not thread-safe.* With one broker. One without sessions, or without room for another, gets full
    requests.
    """

    def __init__(self) -> None:
        self._id, self._epoch = 0, _FULL
        self._kept: Mapping[TopicPartition, FetchPartition] = {}
        self._asked: Mapping[TopicPartition, FetchPartition] = {}

    def kept(self, partition: TopicPartition) -> FetchPartition | None:
        """What the broker keeps of it. Ask for this very object to say that nothing has changed."""
        return self._kept.get(partition)

    def next(self, asked: Mapping[TopicPartition, FetchPartition]) -> dict[str, Any]:
        """The fields of a request of these partitions."""
        self._asked, kept = asked, self._kept
        gone = [partition for partition in kept if partition not in asked]
        return {
            "session_id": self._id,
            "session_epoch": self._epoch,
            "topics": fetch_topics({at: want for at, want in asked.items() if kept.get(at) is not want}),
            "forgotten_topics_data": tuple(
                ForgottenTopic(topic=topic, partitions=tuple(numbers))
                for topic, numbers in _by_topic((at.topic, at.partition) for at in gone).items()
            ),
        }

    def answered(self, answer: FetchResponse) -> bool:
        """False if the session is over: ask again."""
        if answer.error_code in _ERRORS:
            self.lost()
            return False
        if answer.error_code is not ErrorCode.NONE:
            self.lost()
        elif answer.session_id == 0:
            self._id = 0
            self.lost()
        else:
            self._epoch = 1 if answer.session_id != self._id else self._epoch % _LARGEST + 1
            self._id, self._kept = answer.session_id, self._asked
        return True

    def lost(self) -> None:
        """No answer came: the next request is a full one, which ends the session."""
        self._epoch, self._kept = _FULL, {}


def fetch_topics(asked: Mapping[TopicPartition, FetchPartition]) -> tuple[FetchTopic, ...]:
    """What a request names of these partitions."""
    found = _by_topic((at.topic, want) for at, want in asked.items())
    return tuple(FetchTopic(topic=topic, partitions=tuple(wants)) for topic, wants in found.items())


def _by_topic(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for topic, one in pairs:
        found[topic].append(one)
    return found
