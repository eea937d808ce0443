"""Answers of other coordinators about transactions that write to this broker's partitions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyspark_kafkalog.errors import InvalidTxnState
from pyspark_kafkalog.types import TopicPartition

_LOCKS = 64
_REMEMBERED = 50_000
"""Forgotten answers are requested again."""


class Question:
    """*Guarded by the lock of its partition and producer.* Whether a partition is in a transaction.

    Created before the coordinator is asked. The transaction's marker drops it, so late answers are ignored.
    """

    __slots__ = ("epoch", "is_in")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.is_in = False


_Key = tuple[TopicPartition, int]


class TxnVerification:
    """*Thread-safe.* Which partitions are in open transactions of producers, by partition and producer id.

    A key's lock, one of ``_locks``, is held while data or the marker of its transaction is appended, so no
    data follows the marker. It comes before the log's lock. ``_table`` guards the dictionary itself.
    """

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._locks = tuple(threading.Lock() for _ in range(_LOCKS))
        self._table = threading.Lock()
        self._questions: OrderedDict[_Key, Question] = OrderedDict()

    def unknown(
        self, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        with self._table:
            found = [(each, self._questions.get((each, producer_id))) for each in partitions]
        return [each for each, known in found if known is None or known.epoch != epoch or not known.is_in]

    def asking(
        self, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Question]:
        """Call before asking the coordinator; pass the result to `answered` for those in the transaction."""
        asked = {}
        with self._table:
            for each in partitions:
                key = each, producer_id
                known = self._questions.get(key)
                if known is None or known.epoch != epoch:
                    known = self._questions[key] = Question(epoch)
                self._questions.move_to_end(key)
                asked[each] = known
            while len(self._questions) > self._remembered:
                self._questions.popitem(last=False)
        return asked

    def answered(self, question: Question) -> None:
        question.is_in = True

    @contextmanager
    def writing(self, partition: TopicPartition, producer_id: int, epoch: int) -> Iterator[None]:
        """Hold this while appending a batch. Raises `InvalidTxnState`: not in an open transaction."""
        key = partition, producer_id
        with self._lock(key):
            known = self._questions.get(key)
            if known is None or known.epoch != epoch or not known.is_in:
                raise InvalidTxnState(
                    f"{partition} is not part of an open transaction of producer {producer_id}"
                )
            yield

    @contextmanager
    def ending(self, partition: TopicPartition, producer_id: int) -> Iterator[None]:
        """Hold this while appending the marker; the partition then leaves the transaction."""
        key = partition, producer_id
        with self._lock(key):
            with self._table:
                self._questions.pop(key, None)
            yield

    def _lock(self, key: _Key) -> threading.Lock:
        return self._locks[hash(key) % _LOCKS]
