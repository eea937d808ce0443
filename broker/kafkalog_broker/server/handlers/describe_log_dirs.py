"""DescribeLogDirs 1-4: the data directories, their disks' sizes, and the bytes of each partition in them.

A directory that is offline has an error and no partitions. No replica is ever moved between directories.
"""

from __future__ import annotations

import shutil
from itertools import groupby
from operator import attrgetter

from kafkalog_broker.server.dispatch import Context, handles
from kafkalog_broker.store.manager import DirectoryContents
from pyspark_kafkalog.errors import ErrorCode, KafkaError
from pyspark_kafkalog.protocol.api.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.security.acls import CLUSTER_NAME, Operation, ResourceType
from pyspark_kafkalog.steps import Steps
from pyspark_kafkalog.types import TopicPartition


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 4), needs=((Operation.DESCRIBE, ResourceType.CLUSTER),))
def describe_log_dirs(request: DescribeLogDirsRequest, ctx: Context) -> Steps[DescribeLogDirsResponse]:
    """Every directory, with those of the partitions asked for that it has."""
    try:
        ctx.demand(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    except KafkaError as e:
        return DescribeLogDirsResponse(error_code=ctx.refused(e))
    wanted = None
    if request.topics is not None:
        wanted = {TopicPartition(topic.topic, each) for topic in request.topics for each in topic.partitions}
    results = []
    for each in ctx.services.logs.directories(wanted):
        yield None
        results.append(_described(each))
    return DescribeLogDirsResponse(results=tuple(results))


def _described(directory: DirectoryContents) -> DescribeLogDirsResult:
    try:
        disk = shutil.disk_usage(directory.path)
        total_bytes, usable_bytes = disk.total, disk.free
    except OSError:
        total_bytes = usable_bytes = -1
    if not directory.online:
        return DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(directory.path),
            total_bytes=total_bytes, usable_bytes=usable_bytes,
        )  # fmt: skip
    by_topic = groupby(sorted(directory.sizes), key=attrgetter("topic"))
    return DescribeLogDirsResult(
        error_code=ErrorCode.NONE,
        log_dir=str(directory.path),
        topics=tuple(
            DescribeLogDirsTopic(
                name=topic,
                partitions=tuple(
                    DescribeLogDirsPartition(
                        partition_index=each.partition, partition_size=directory.sizes[each]
                    )
                    for each in partitions
                ),
            )
            for topic, partitions in by_topic
        ),
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
