"""Read and load Kafka topics with Spark in pure Python.

    import pyspark_kafkalog as kafkalog

    spark.read.format("kafkalog").option("kafka.bootstrap.servers", ...).option("subscribe", ...).load()

Spark imports this module in every Python worker to find `DefaultSource`, and the broker imports the packages
below it. So public names are imported on first use, and importing this module cannot fail.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector
    from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer
    from pyspark_kafkalog.classic.consumer.stream import Blacklist, ConsumerTimeout, Whitelist
    from pyspark_kafkalog.classic.producer.async_producer import AsyncProducer, CallbackHandler, EventHandler
    from pyspark_kafkalog.classic.producer.classic_producer import ClassicProducer, ProducerData
    from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest, SyncProducer
    from pyspark_kafkalog.client.admin import NewTopic, create_partitions, create_topics, delete_topics
    from pyspark_kafkalog.client.groups import (
        CommittedOffset,
        commit_offsets,
        committed_offsets,
        delete_group_offsets,
        delete_groups,
        describe_group,
        list_groups,
    )
    from pyspark_kafkalog.client.transaction_admin import (
        abort_transaction,
        describe_transaction,
        list_transactions,
    )
    from pyspark_kafkalog.consumer.consumer import Consumer
    from pyspark_kafkalog.consumer.record_fetcher import ConsumerRecord
    from pyspark_kafkalog.datasource.read_arrow import read_arrow
    from pyspark_kafkalog.datasource.source import DefaultSource
    from pyspark_kafkalog.datasource.stream.lag_listener import LagListener, SourceLag
    from pyspark_kafkalog.errors import KafkaError, LoadError
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
    "Blacklist",
    "CallbackHandler",
    "ClassicProducer",
    "Commit",
    "CommittedOffset",
    "Consumer",
    "ConsumerConnector",
    "ConsumerRecord",
    "ConsumerTimeout",
    "DefaultSource",
    "EventHandler",
    "FetchRequest",
    "KafkaError",
    "LagListener",
    "Ledger",
    "LoadError",
    "NewTopic",
    "Producer",
    "ProducerData",
    "ProducerRequest",
    "SimpleConsumer",
    "SourceLag",
    "SyncProducer",
    "TopicPartition",
    "Whitelist",
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
    "ensure_java",
    "list_groups",
    "list_transactions",
    "load",
    "read_arrow",
    "read_dead",
    "read_load",
    "use_spark_keys",
]

_HOMES = {
    "AsyncProducer": "classic.producer.async_producer",
    "Blacklist": "classic.consumer.stream",
    "CallbackHandler": "classic.producer.async_producer",
    "ClassicProducer": "classic.producer.classic_producer",
    "Commit": "ledger.commit",
    "CommittedOffset": "client.groups",
    "Consumer": "consumer.consumer",
    "ConsumerConnector": "classic.consumer.consumer_connector",
    "ConsumerRecord": "consumer.record_fetcher",
    "ConsumerTimeout": "classic.consumer.stream",
    "DefaultSource": "datasource.source",
    "EventHandler": "classic.producer.async_producer",
    "FetchRequest": "protocol.v07",
    "KafkaError": "errors",
    "LagListener": "datasource.stream.lag_listener",
    "Ledger": "ledger.ledger",
    "LoadError": "errors",
    "NewTopic": "client.admin",
    "Producer": "producer.producer",
    "ProducerData": "classic.producer.classic_producer",
    "ProducerRequest": "classic.producer.sync_producer",
    "SimpleConsumer": "classic.consumer.simple_consumer",
    "SourceLag": "datasource.stream.lag_listener",
    "SyncProducer": "classic.producer.sync_producer",
    "TopicPartition": "types",
    "Whitelist": "classic.consumer.stream",
    "abort_transaction": "client.transaction_admin",
    "audit": "loads.reading",
    "audit_sql": "loads.sql.reconcile",
    "commit_offsets": "client.groups",
    "committed_offsets": "client.groups",
    "compact": "loads.compaction",
    "create_partitions": "client.admin",
    "create_topics": "client.admin",
    "delete_group_offsets": "client.groups",
    "delete_groups": "client.groups",
    "delete_topics": "client.admin",
    "describe_group": "client.groups",
    "describe_transaction": "client.transaction_admin",
    "ensure_java": "java_runtime",
    "list_groups": "client.groups",
    "list_transactions": "client.transaction_admin",
    "load": "loads.load",
    "read_arrow": "datasource.read_arrow",
    "read_dead": "loads.dead_letters",
    "read_load": "loads.reading",
    "use_spark_keys": "loads.store_keys",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
