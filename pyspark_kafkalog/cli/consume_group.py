"""``kafkalog consume --group``: write the records that a consumer group gives this member."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

import typer

from pyspark_kafkalog.cli.record_text import Output
from pyspark_kafkalog.config.group_consumer import GroupConsumerConfig
from pyspark_kafkalog.consumer.consumer import Consumer
from pyspark_kafkalog.errors import UnknownTopicOrPartition
from pyspark_kafkalog.types import TopicPartition

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 10.0
"""How long a member without partitions waits for some."""


def copy_group(config: GroupConsumerConfig, topic: str, output: Output, *, follow: bool) -> None:
    """Write records of ``topic`` until this member's partitions end; with ``follow`` until SIGTERM or Ctrl-C.

    A partition ends where it ended when the member got it. Offsets are committed after their records are
    written, so that a reader that goes away, such as head, loses none.
    """
    # Ended by SIGTERM too the member leaves, so that others need not wait for its session to end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Consumer(replace(config, enable_auto_commit=False)) as consumer:
        if not consumer.partitions_for(topic):
            raise UnknownTopicOrPartition(f"topic {topic!r} does not exist on {config.bootstrap_servers}")
        ends: dict[TopicPartition, int] = {}

        def got(partitions: list[TopicPartition]) -> None:
            ends.update({} if follow else consumer.end_offsets(partitions))

        consumer.subscribe(topic, on_assigned=got)
        give_up = time.monotonic() + _PATIENCE_SECONDS
        try:
            while not output.full:
                for tp, records in groupby(
                    consumer.poll(_POLL_SECONDS, max_records=output.room), attrgetter("topic_partition")
                ):
                    output.add(tp, list(records))
                output.flush()
                held = consumer.assignment
                if held:
                    give_up = time.monotonic() + _PATIENCE_SECONDS
                    consumer.commit()
                    if not follow and all(consumer.position(tp) >= ends[tp] for tp in held):
                        return
                elif not follow and time.monotonic() > give_up:
                    typer.echo(f"{topic}: other members of the group have all its partitions", err=True)
                    return
        except KeyboardInterrupt:
            if not follow:
                raise
