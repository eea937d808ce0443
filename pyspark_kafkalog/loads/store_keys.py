"""Credentials and endpoints of stores from Spark's own keys, for the driver and for tasks.

If Spark's keys name none, `object_clients` uses those of the environment or the machine's role. Tasks cannot
read Spark's configuration: they get the keys in their Python worker's environment, never in an option or
plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import InvalidConfig, UnsafeStore
from pyspark_kafkalog.ledger.stores.hadoop_keys import Get, settings_of
from pyspark_kafkalog.ledger.stores.object_clients import (
    SETTINGS_VARIABLE,
    address_of,
    give_settings,
    is_object_store,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def give_spark_keys(spark: SparkSession, location: str) -> None:
    """Pass Spark's keys for a store to this process and the session's tasks; `InvalidConfig` if unusable."""
    if not is_object_store(location):
        return
    address = address_of(location)
    text = give_settings(address, settings_of(address, _keys(spark)))
    # Spark Connect has no context: there, executors need the environment.
    context = getattr(spark, "_sc", None)
    if context is not None and context.environment.get(SETTINGS_VARIABLE, "{}") != text:
        from pyspark_kafkalog.datasource.source import DefaultSource

        context.environment[SETTINGS_VARIABLE] = text
        spark.dataSource.register(DefaultSource)  # tasks get the environment of the registration


def use_spark_keys(spark: SparkSession, location: str) -> None:
    """Let all later reads and streams of this session open the store at a URL with Spark's keys.

    ``spark.read`` and ``spark.readStream`` with ``offsetsPath`` at ``s3://``, ``gs://``, ``abfss://`` run in
    processes that cannot read Spark's configuration and otherwise use the environment only. `load` and the
    functions that read loads call this themselves.

    Raises `InvalidConfig` in Spark Connect, or for credentials that only Java has, and `UnsafeStore` for
    other URLs.
    """
    if not is_object_store(location):
        raise UnsafeStore(f"{masked(location)}: Spark's keys are of stores at s3://, gs:// or abfss:// only")
    if getattr(spark, "_sc", None) is None:
        raise InvalidConfig(
            "use_spark_keys() cannot reach the processes of a Spark Connect server: set the store's "
            "credentials in the environment of the server and its executors"
        )
    give_spark_keys(spark, location)


_DEFAULTS = "core-default.xml"


def _keys(spark: SparkSession) -> Get:
    """Hadoop's keys as Spark's writers see them, without defaults; in Spark Connect the session's only."""
    context: Any = getattr(spark, "_jsc", None)
    hadoop = None if context is None else context.hadoopConfiguration()

    def get(key: str) -> str | None:
        value = spark.conf.get(key, None)
        if not value and hadoop is not None:
            sources = hadoop.getPropertySources(key)
            if sources is not None and sources[0] != _DEFAULTS:
                value = hadoop.get(key)
        return value or spark.conf.get(f"spark.hadoop.{key}", None)

    return get
