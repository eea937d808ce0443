"""A topic whose partitions are one and the same log, so that a long topic needs little of the disk."""

from __future__ import annotations

import os
from pathlib import Path

from kafkalog_broker.disk.data_directory import (
    CLEAN_SHUTDOWN_NAME,
    RECOVERY_POINTS_NAME,
    read_table,
    write_table,
)
from kafkalog_broker.disk.filesystem import FileSystem
from kafkalog_broker.logs.topic_store import PARTITION_METADATA, directory_name
from pyspark_kafkalog.types import TopicPartition


def link_partitions(data_dir: Path, topic: str, count: int) -> None:
    """Give partitions 1 to ``count`` - 1, which exist and are empty, hard links to the files of partition 0.

    The broker of ``data_dir`` was stopped and not killed. What it noted of partition 0 then, where the log
    ends and that it is on the disk, is noted of the others, or it would read each of them whole. Nothing must
    be appended afterwards: each partition would see it.
    """
    names = [directory_name(TopicPartition(topic, number)) for number in range(count)]
    for name in names[1:]:
        for file in (data_dir / name).iterdir():
            if file.name != PARTITION_METADATA:
                file.unlink()
        for file in (data_dir / names[0]).iterdir():
            if file.name != PARTITION_METADATA:
                os.link(file, data_dir / name / file.name)
    files = FileSystem()
    for table in (CLEAN_SHUTDOWN_NAME, RECOVERY_POINTS_NAME):
        rows = read_table(files, data_dir / table)
        assert rows is not None, f"the broker left no {table}"
        write_table(files, data_dir / table, rows | dict.fromkeys(names, rows[names[0]]), durable=True)
