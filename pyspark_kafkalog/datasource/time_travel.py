"""Reads of what a load read formerly: `ledger.history` says which offsets these are."""

from __future__ import annotations

import re
from dataclasses import replace

from pyspark_kafkalog.datasource.load_options import LoadOptions
from pyspark_kafkalog.datasource.offsets import Committed, SpecificOffsets
from pyspark_kafkalog.datasource.options import BatchOptions
from pyspark_kafkalog.datasource.subscription import Assign, Subscribe, Subscription
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.ledger.history import positions_after, ranges_of
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.types import TopicPartition


def former_read(options: BatchOptions, load: LoadOptions) -> BatchOptions:
    """The read of plain offsets that a read of former loads is, of the partitions subscribed to.

    It belongs to no load: nothing is planned, proved or committed.

    Raises:
        LoadError: the load has no such commits.
        InvalidConfig: none of its partitions is subscribed to.
    """
    ledger = Ledger.at(load.offsets_path, load.name)
    if load.former is None:
        start = options.start
        if not isinstance(start, Committed):
            raise InvalidConfig("this reads no former loads")
        return replace(
            options, start=replace(start, offsets=positions_after(ledger, start.number)), load=None
        )
    ranges = ranges_of(ledger, load.former)
    wanted = {key: span for key, span in ranges.items() if _is_in(key, options.subscription)}
    if not wanted:
        topics = ", ".join(sorted({key.topic for key in ranges}))
        raise InvalidConfig(f"load {load.name!r} read {topics} then, and none of it is subscribed to")
    return replace(
        options,
        subscription=Assign(tuple(sorted(wanted))),
        start=SpecificOffsets({key: start for key, (start, _) in wanted.items()}),
        end=SpecificOffsets({key: end for key, (_, end) in wanted.items()}),
        load=None,
    )


def _is_in(key: TopicPartition, subscription: Subscription) -> bool:
    if isinstance(subscription, Assign):
        return key in subscription.partitions
    if isinstance(subscription, Subscribe):
        return key.topic in subscription.topics
    return re.fullmatch(subscription.pattern, key.topic) is not None
