"""DescribeCluster, versions 0-1: the cluster's id, controller and brokers.

Flexible from 0. Version 1 asks for brokers or controllers. Left out: fenced brokers (2).
Source: protocol guide, DescribeCluster; KIP-700, 919.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.metadata import NOT_ASKED
from pyspark_kafkalog.protocol.codec import BOOL, ERROR_CODE, INT8, INT32, STRING, Array, wire

BROKERS = 1
"""The ``endpoint_type`` of brokers; 2 is that of controllers."""


@dataclass(frozen=True, slots=True)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = wire(BOOL)
    endpoint_type: int = wire(INT8, 1, default=BROKERS)


@dataclass(frozen=True, slots=True)
class DescribeClusterBroker:
    broker_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, null_since=0)


@dataclass(frozen=True, slots=True)
class DescribeClusterResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: ErrorCode = wire(ERROR_CODE)
    error_message: str | None = wire(STRING, null_since=0)
    endpoint_type: int = wire(INT8, 1, default=BROKERS)
    cluster_id: str = wire(STRING)
    controller_id: int = wire(INT32, default=-1)
    brokers: tuple[DescribeClusterBroker, ...] = wire(Array(DescribeClusterBroker))
    cluster_authorized_operations: int = wire(INT32, default=NOT_ASKED)
