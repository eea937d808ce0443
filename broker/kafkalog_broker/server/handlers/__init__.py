"""Handlers of requests, one file per theme, as in `pyspark_kafkalog.protocol.api`.

Unless a handler says otherwise, an error in one topic, partition or group does not fail the others, and
results are in the order of the request. What a request names twice is described once; a change of it is
refused.

Importing this package fills `dispatch.REGISTRY`: each handler registers itself with its API and versions.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkalog_broker.server.handlers import (  # noqa: F401  (each registers itself)
    acls,
    cluster,
    configs,
    consumer_groups,
    fetch,
    group_offsets,
    groups,
    log_offsets,
    logins,
    metadata,
    produce,
    producers,
    topics,
    transactions,
)

NOT_SERVED: Mapping[str, str] = {
    "CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken":
        "there are no delegation tokens",
    "AlterClientQuotas": "there are no quotas",
    "LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown and KRaft's":
        "what Kafka's brokers and controllers send each other",
    "DescribeQuorum, UpdateFeatures": "no quorum of controllers, no features to switch",
    "GetTelemetrySubscriptions, PushTelemetry": "clients send no metrics",
    "share groups, streams groups": "of Kafka 4.1 and later",
}  # fmt: skip
"""APIs of Kafka that are not served, and why, for docs/compatibility.md."""
