"""Read and load Kafka topics with Spark in pure Python.

    import pyspark_kafkalog as kafkalog

    spark.read.format("kafkalog").option("kafka.bootstrap.servers", ...).option("subscribe", ...).load()

Spark imports this module in every Python worker to find `DefaultSource`, and the broker imports the packages
below it. So public names are imported on first use, and importing this module cannot fail.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector
    from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
    from pyspark_kafkalog.classic.consumer.stream import Blacklist, ConsumerTimeout, Whitelist
    from pyspark_kafkalog.classic.mirror import Mirror
    from pyspark_kafkalog.classic.producer.async_producer import (
        AsyncProducer,
        CallbackHandler,
        EventHandler,
        QueueFull,
    )
    from pyspark_kafkalog.classic.producer.classic_producer import ClassicProducer, ProducerData
    from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest, SyncProducer
    from pyspark_kafkalog.client.admin import (
        NewTopic,
        abort_transaction,
        create_partitions,
        create_topics,
        delete_topics,
        describe_transaction,
        list_transactions,
    )
    from pyspark_kafkalog.client.discovery import Cluster
    from pyspark_kafkalog.client.groups import (
        CommittedOffset,
        commit_offsets,
        committed_offsets,
        delete_group_offsets,
        delete_groups,
        describe_group,
        list_groups,
    )
    from pyspark_kafkalog.client.transactions import end_transaction
    from pyspark_kafkalog.config.client_config import ClientConfig
    from pyspark_kafkalog.config.mirror_config import mirror_config
    from pyspark_kafkalog.config.properties import load_properties
    from pyspark_kafkalog.consumer.consumer import Consumer
    from pyspark_kafkalog.consumer.record_fetcher import ConsumerRecord
    from pyspark_kafkalog.datasource.batch.load_planning import PendingPlan
    from pyspark_kafkalog.datasource.read_arrow import read_arrow
    from pyspark_kafkalog.datasource.sink.sink_transactions import WrittenOtherwise
    from pyspark_kafkalog.datasource.source import DefaultSource
    from pyspark_kafkalog.datasource.stream.lag_listener import LagListener, SourceLag
    from pyspark_kafkalog.errors import (
        AuthenticationFailed,
        BrokersUnreachable,
        CommitFailed,
        ConnectionLost,
        CorruptMessage,
        DamagedRecord,
        DatabaseFailed,
        ForeignCluster,
        IncompleteLoad,
        InvalidConfig,
        InvalidRecord,
        InvalidTimestamp,
        InvalidTopic,
        InvalidTxnState,
        KafkaError,
        LoadBusy,
        LoadError,
        LostRace,
        MessageTooLarge,
        NewerFormat,
        NoOffset,
        OffsetOutOfRange,
        OffsetsAgedOut,
        ProducerFenced,
        ReceiptMismatch,
        RequestTimedOut,
        ServerError,
        TooManyDead,
        TopicAlreadyExists,
        TopicRecreated,
        TransactionAbortable,
        TransactionAborted,
        UnknownTopicOrPartition,
        UnsafeStore,
        UnstorableValue,
        UnsupportedCompression,
        UnsupportedVersion,
    )
    from pyspark_kafkalog.java_runtime import ensure_java
    from pyspark_kafkalog.ledger.commit import Commit
    from pyspark_kafkalog.ledger.ledger import Ledger
    from pyspark_kafkalog.loads.compaction import compact
    from pyspark_kafkalog.loads.dead_letters import read_dead
    from pyspark_kafkalog.loads.load import load
    from pyspark_kafkalog.loads.reading import audit, read_load
    from pyspark_kafkalog.loads.sql.reconcile import audit_sql
    from pyspark_kafkalog.loads.store_keys import use_spark_keys
    from pyspark_kafkalog.producer.producer import Producer
    from pyspark_kafkalog.protocol.v07 import FetchRequest
    from pyspark_kafkalog.types import TopicPartition

__version__ = "0.1.0"

__all__ = [
    "AsyncProducer",
    "AuthenticationFailed",
    "Blacklist",
    "BrokersUnreachable",
    "CallbackHandler",
    "ClassicProducer",
    "ClientConfig",
    "Cluster",
    "Commit",
    "CommitFailed",
    "CommittedOffset",
    "ConnectionLost",
    "Consumer",
    "ConsumerConnector",
    "ConsumerRecord",
    "ConsumerTimeout",
    "CorruptMessage",
    "DamagedRecord",
    "DatabaseFailed",
    "DefaultSource",
    "EventHandler",
    "FetchRequest",
    "ForeignCluster",
    "IncompleteLoad",
    "InvalidConfig",
    "InvalidRecord",
    "InvalidTimestamp",
    "InvalidTopic",
    "InvalidTxnState",
    "KafkaError",
    "LagListener",
    "Ledger",
    "LoadBusy",
    "LoadError",
    "LostRace",
    "MessageTooLarge",
    "Mirror",
    "NewTopic",
    "NewerFormat",
    "NoOffset",
    "OffsetOutOfRange",
    "OffsetsAgedOut",
    "PendingPlan",
    "Producer",
    "ProducerData",
    "ProducerFenced",
    "ProducerRequest",
    "QueueFull",
    "ReceiptMismatch",
    "RequestTimedOut",
    "ServerError",
    "SimpleConsumer",
    "SourceLag",
    "SyncProducer",
    "TooManyDead",
    "TopicAlreadyExists",
    "TopicPartition",
    "TopicRecreated",
    "TransactionAbortable",
    "TransactionAborted",
    "UnknownTopicOrPartition",
    "UnsafeStore",
    "UnstorableValue",
    "UnsupportedCompression",
    "UnsupportedVersion",
    "Whitelist",
    "WrittenOtherwise",
    "__version__",
    "abort_transaction",
    "audit",
    "audit_sql",
    "commit_offsets",
    "committed_offsets",
    "compact",
    "create_partitions",
    "create_topics",
    "delete_group_offsets",
    "delete_groups",
    "delete_topics",
    "describe_group",
    "describe_transaction",
    "end_transaction",
    "ensure_java",
    "list_groups",
    "list_transactions",
    "load",
    "load_properties",
    "mirror_config",
    "read_arrow",
    "read_dead",
    "read_load",
    "use_spark_keys",
]

# Where a name is imported from when it is first used; what is not listed is one of the errors.
_NAMES: dict[str, tuple[str, ...]] = {
    "classic.consumer.consumer_connector": ("ConsumerConnector",),
    "classic.consumer.simple_consumer": ("SimpleConsumer",),
    "classic.consumer.stream": ("Blacklist", "ConsumerTimeout", "Whitelist"),
    "classic.mirror": ("Mirror",),
    "classic.producer.async_producer": ("AsyncProducer", "CallbackHandler", "EventHandler", "QueueFull"),
    "classic.producer.classic_producer": ("ClassicProducer", "ProducerData"),
    "classic.producer.sync_producer": ("ProducerRequest", "SyncProducer"),
    "client.admin": (
        "NewTopic",
        "abort_transaction",
        "create_partitions",
        "create_topics",
        "delete_topics",
        "describe_transaction",
        "list_transactions",
    ),
    "client.discovery": ("Cluster",),
    "client.groups": (
        "CommittedOffset",
        "commit_offsets",
        "committed_offsets",
        "delete_group_offsets",
        "delete_groups",
        "describe_group",
        "list_groups",
    ),
    "client.transactions": ("end_transaction",),
    "config.client_config": ("ClientConfig",),
    "config.mirror_config": ("mirror_config",),
    "config.properties": ("load_properties",),
    "consumer.consumer": ("Consumer",),
    "consumer.record_fetcher": ("ConsumerRecord",),
    "datasource.batch.load_planning": ("PendingPlan",),
    "datasource.read_arrow": ("read_arrow",),
    "datasource.sink.sink_transactions": ("WrittenOtherwise",),
    "datasource.source": ("DefaultSource",),
    "datasource.stream.lag_listener": ("LagListener", "SourceLag"),
    "java_runtime": ("ensure_java",),
    "ledger.commit": ("Commit",),
    "ledger.ledger": ("Ledger",),
    "loads.compaction": ("compact",),
    "loads.dead_letters": ("read_dead",),
    "loads.load": ("load",),
    "loads.reading": ("audit", "read_load"),
    "loads.sql.reconcile": ("audit_sql",),
    "loads.store_keys": ("use_spark_keys",),
    "producer.producer": ("Producer",),
    "protocol.v07": ("FetchRequest",),
    "types": ("TopicPartition",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
