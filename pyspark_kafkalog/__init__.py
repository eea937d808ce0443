"""Read and load Kafka topics with Spark in pure Python.

    import pyspark_kafkalog as kafkalog

    spark.read.format("kafkalog").option("kafka.bootstrap.servers", ...).option("subscribe", ...).load()

Spark imports this module in every Python worker to find `DefaultSource`, and the broker imports the packages
below it. So public names are imported on first use, and importing this module cannot fail.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the public names; see `_homes`
    from pyspark_kafkalog.classic.consumer.consumer_connector import ConsumerConnector as ConsumerConnector
    from pyspark_kafkalog.classic.consumer.simple_consumer import SimpleConsumer as SimpleConsumer
    from pyspark_kafkalog.classic.consumer.stream import Blacklist as Blacklist
    from pyspark_kafkalog.classic.consumer.stream import ConsumerTimeout as ConsumerTimeout
    from pyspark_kafkalog.classic.consumer.stream import Whitelist as Whitelist
    from pyspark_kafkalog.classic.mirror import Mirror as Mirror
    from pyspark_kafkalog.classic.producer.async_producer import AsyncProducer as AsyncProducer
    from pyspark_kafkalog.classic.producer.async_producer import CallbackHandler as CallbackHandler
    from pyspark_kafkalog.classic.producer.async_producer import EventHandler as EventHandler
    from pyspark_kafkalog.classic.producer.async_producer import QueueFull as QueueFull
    from pyspark_kafkalog.classic.producer.classic_producer import ClassicProducer as ClassicProducer
    from pyspark_kafkalog.classic.producer.classic_producer import ProducerData as ProducerData
    from pyspark_kafkalog.classic.producer.sync_producer import ProducerRequest as ProducerRequest
    from pyspark_kafkalog.classic.producer.sync_producer import SyncProducer as SyncProducer
    from pyspark_kafkalog.client.admin import NewTopic as NewTopic
    from pyspark_kafkalog.client.admin import abort_transaction as abort_transaction
    from pyspark_kafkalog.client.admin import create_partitions as create_partitions
    from pyspark_kafkalog.client.admin import create_topics as create_topics
    from pyspark_kafkalog.client.admin import delete_topics as delete_topics
    from pyspark_kafkalog.client.admin import describe_transaction as describe_transaction
    from pyspark_kafkalog.client.admin import list_transactions as list_transactions
    from pyspark_kafkalog.client.discovery import Cluster as Cluster
    from pyspark_kafkalog.client.groups import CommittedOffset as CommittedOffset
    from pyspark_kafkalog.client.groups import commit_offsets as commit_offsets
    from pyspark_kafkalog.client.groups import committed_offsets as committed_offsets
    from pyspark_kafkalog.client.groups import delete_group_offsets as delete_group_offsets
    from pyspark_kafkalog.client.groups import delete_groups as delete_groups
    from pyspark_kafkalog.client.groups import describe_group as describe_group
    from pyspark_kafkalog.client.groups import list_groups as list_groups
    from pyspark_kafkalog.client.transactions import end_transaction as end_transaction
    from pyspark_kafkalog.config.client_config import ClientConfig as ClientConfig
    from pyspark_kafkalog.config.mirror_config import mirror_config as mirror_config
    from pyspark_kafkalog.config.properties import load_properties as load_properties
    from pyspark_kafkalog.consumer.consumer import Consumer as Consumer
    from pyspark_kafkalog.consumer.record_fetcher import ConsumerRecord as ConsumerRecord
    from pyspark_kafkalog.datasource.batch.load_planning import PendingPlan as PendingPlan
    from pyspark_kafkalog.datasource.commit_listener import commit_on_success as commit_on_success
    from pyspark_kafkalog.datasource.read_arrow import read_arrow as read_arrow
    from pyspark_kafkalog.datasource.sink.sink_transactions import WrittenOtherwise as WrittenOtherwise
    from pyspark_kafkalog.datasource.source import DefaultSource as DefaultSource
    from pyspark_kafkalog.datasource.stream.lag_listener import LagListener as LagListener
    from pyspark_kafkalog.datasource.stream.lag_listener import SourceLag as SourceLag
    from pyspark_kafkalog.errors import AuthenticationFailed as AuthenticationFailed
    from pyspark_kafkalog.errors import BrokersUnreachable as BrokersUnreachable
    from pyspark_kafkalog.errors import CommitFailed as CommitFailed
    from pyspark_kafkalog.errors import ConnectionLost as ConnectionLost
    from pyspark_kafkalog.errors import CorruptMessage as CorruptMessage
    from pyspark_kafkalog.errors import DamagedRecord as DamagedRecord
    from pyspark_kafkalog.errors import DatabaseFailed as DatabaseFailed
    from pyspark_kafkalog.errors import ForeignCluster as ForeignCluster
    from pyspark_kafkalog.errors import IncompleteLoad as IncompleteLoad
    from pyspark_kafkalog.errors import InvalidConfig as InvalidConfig
    from pyspark_kafkalog.errors import InvalidRecord as InvalidRecord
    from pyspark_kafkalog.errors import InvalidTimestamp as InvalidTimestamp
    from pyspark_kafkalog.errors import InvalidTopic as InvalidTopic
    from pyspark_kafkalog.errors import InvalidTxnState as InvalidTxnState
    from pyspark_kafkalog.errors import KafkaError as KafkaError
    from pyspark_kafkalog.errors import LoadBusy as LoadBusy
    from pyspark_kafkalog.errors import LoadError as LoadError
    from pyspark_kafkalog.errors import LostRace as LostRace
    from pyspark_kafkalog.errors import MessageTooLarge as MessageTooLarge
    from pyspark_kafkalog.errors import NewerFormat as NewerFormat
    from pyspark_kafkalog.errors import NoOffset as NoOffset
    from pyspark_kafkalog.errors import OffsetOutOfRange as OffsetOutOfRange
    from pyspark_kafkalog.errors import OffsetsAgedOut as OffsetsAgedOut
    from pyspark_kafkalog.errors import ProducerFenced as ProducerFenced
    from pyspark_kafkalog.errors import ReceiptMismatch as ReceiptMismatch
    from pyspark_kafkalog.errors import RequestTimedOut as RequestTimedOut
    from pyspark_kafkalog.errors import ServerError as ServerError
    from pyspark_kafkalog.errors import TooManyDead as TooManyDead
    from pyspark_kafkalog.errors import TopicAlreadyExists as TopicAlreadyExists
    from pyspark_kafkalog.errors import TopicRecreated as TopicRecreated
    from pyspark_kafkalog.errors import TransactionAbortable as TransactionAbortable
    from pyspark_kafkalog.errors import TransactionAborted as TransactionAborted
    from pyspark_kafkalog.errors import UnknownTopicOrPartition as UnknownTopicOrPartition
    from pyspark_kafkalog.errors import UnsafeStore as UnsafeStore
    from pyspark_kafkalog.errors import UnstorableValue as UnstorableValue
    from pyspark_kafkalog.errors import UnsupportedCompression as UnsupportedCompression
    from pyspark_kafkalog.errors import UnsupportedVersion as UnsupportedVersion
    from pyspark_kafkalog.java_runtime import ensure_java as ensure_java
    from pyspark_kafkalog.ledger.commit import Commit as Commit
    from pyspark_kafkalog.ledger.ledger import Ledger as Ledger
    from pyspark_kafkalog.loads.compaction import compact as compact
    from pyspark_kafkalog.loads.dead_letters import read_dead as read_dead
    from pyspark_kafkalog.loads.load import load as load
    from pyspark_kafkalog.loads.output_files import use_spark_keys as use_spark_keys
    from pyspark_kafkalog.loads.reading import audit as audit
    from pyspark_kafkalog.loads.reading import read_load as read_load
    from pyspark_kafkalog.loads.sql.reconcile import audit_sql as audit_sql
    from pyspark_kafkalog.producer.producer import Producer as Producer
    from pyspark_kafkalog.protocol.v07 import FetchRequest as FetchRequest
    from pyspark_kafkalog.types import TopicPartition as TopicPartition

    __version__: str

if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    @cache
    def _homes() -> dict[str, str]:
        """The module of each public name, by the imports above, which only type checkers execute."""
        import ast
        from pkgutil import get_data

        source = ast.parse(get_data(__name__, "__init__.py"))
        return {
            alias.asname: node.module
            for node in ast.walk(source)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname
        }

    @cache
    def _release() -> str:
        try:
            return import_module(f"{__name__}._version").version  # written when the package is built
        except ModuleNotFoundError:
            return "0+unknown"  # a working tree that was never installed

    def __dir__() -> list[str]:
        return sorted([*_homes(), "__version__"])

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return _release()
        if name == "__all__":
            return __dir__()
        if name not in _homes():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            if _homes()[name].startswith(f"{__name__}.loads.") and find_spec("pyarrow") is None:
                raise ModuleNotFoundError(name="pyarrow")
            return getattr(import_module(_homes()[name]), name)
        except ModuleNotFoundError as e:
            from pyspark_kafkalog.extras import needs

            raise needs(f"kafkalog.{name}", e) from None
