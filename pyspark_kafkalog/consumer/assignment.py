"""Who reads which partition: the range rule of the design papers. Pure; ZooKeeper is the caller's matter.

Every consumer of a group computes it by itself, so what it gets must depend on nothing but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from pyspark_kafkalog.zookeeper.values import Subscription

P = TypeVar("P")


def range_assign(
    partitions: Iterable[P], threads: Iterable[str], *, order: Callable[[P], Any] | None = None
) -> dict[str, list[P]]:
    """Contiguous ranges of the sorted partitions to the sorted threads; every thread has its entry.

    With P partitions and C threads each gets ``P // C``; the first ``P % C`` get one more, so that none is
    left unowned; with fewer partitions than threads the last ones get nothing. ``order`` is the key to sort
    partitions by: their own order without it. Names of 0.7 are sorted as strings, ``10-0`` before ``2-0``,
    which keeps a broker's partitions together.
    """
    in_order = sorted(set(partitions), key=order)  # type: ignore[type-var,arg-type]
    takers = sorted(set(threads))
    if not takers:
        return {}
    each, more = divmod(len(in_order), len(takers))
    assigned = {}
    for place, thread in enumerate(takers):
        start = place * each + min(place, more)
        assigned[thread] = in_order[start : start + each + (place < more)]
    return assigned


def thread_id(consumer: str, stream: int) -> str:
    """A consumer's thread for one of its streams, as owners' znodes name it."""
    return f"{consumer}-{stream}"


def threads_by_topic(
    subscriptions: Mapping[str, Subscription], topics: Collection[str]
) -> dict[str, list[str]]:
    """The group's threads for each topic that anybody reads, sorted; ``subscriptions`` are by consumer id.

    ``topics`` are those that exist: filters choose among them.

    Raises:
        InvalidConfig: a filter is not a regular expression.
    """
    found: dict[str, list[str]] = {}
    for consumer, subscription in subscriptions.items():
        for topic, count in subscription.chosen(topics).items():
            found.setdefault(topic, []).extend(thread_id(consumer, stream) for stream in range(count))
    return {topic: sorted(threads) for topic, threads in sorted(found.items())}
