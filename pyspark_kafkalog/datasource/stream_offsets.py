"""The offsets of a stream as Spark's checkpoint keeps them: JSON with the version of its form. Pure.

Version 1 is ``{"version": 1, "offsets": {"topic": {"0": 23}}}``, the next offset to read of each partition;
of 0.7 a partition is ``<broker>-<number>``. What has no version is version 0, ``{"topic": {"0": 23}}``: so
Spark's own connector writes its checkpoints, and a query can go on from one of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_kafkalog.config.definition import LONG_MAX
from pyspark_kafkalog.datasource.offsets import OffsetsByPartition, partition_named
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.types import TopicPartition

VERSION = 1


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Offsets as a dict that JSON can hold; equal offsets make equal JSON."""
    by_topic: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        by_topic.setdefault(partition.topic, {})[partition.number] = offset
    return {"version": VERSION, "offsets": by_topic}


def decode_offsets(kept: object) -> OffsetsByPartition:
    """What `encode_offsets` made, in this or an earlier version.

    Raises:
        InvalidConfig: it was written by a later version, or is nothing of ours.
    """
    form = kept
    if isinstance(kept, dict) and type(kept.get("version")) is int:
        version = kept["version"]
        if version > VERSION:
            raise InvalidConfig(
                f"the checkpoint's offsets have version {version}, and this pyspark-kafkalog knows {VERSION} "
                "at most: it was written by a newer one. Use that, or a new checkpoint"
            )
        form = kept.get("offsets") if version == VERSION else None
    if not isinstance(form, dict):
        raise InvalidConfig(f"these are no offsets of kafkalog, of any version: {kept!r}")
    found: OffsetsByPartition = {}
    for topic, partitions in form.items():
        for name, offset in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            partition = partition_named(topic, name)
            if partition is None or type(offset) is not int or not 0 <= offset <= LONG_MAX:
                raise InvalidConfig(f"these are no offsets of kafkalog, of any version: {kept!r}")
            found[partition] = offset
    return found
