"""One file per API, registered by key and versions: this folder is the table of what is served."""

from __future__ import annotations

from broker.server.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    describe_groups,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
)

__all__ = [
    "alter_configs",
    "api_versions",
    "create_partitions",
    "create_topics",
    "delete_topics",
    "describe_configs",
    "describe_groups",
    "fetch",
    "find_coordinator",
    "incremental_alter_configs",
    "init_producer_id",
    "list_groups",
    "list_offsets",
    "metadata",
    "offset_commit",
    "offset_fetch",
    "produce",
]
