"""Spark over mutual TLS at Apache Kafka: both connectors with the same options; our sink, stream and load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog import NewTopic, create_topics
from tests.support.datasource.both_connectors import OURS, THEIRS, read
from tests.support.datasource.secured_jobs import ROWS, run_all, write
from tests.support.foreign.secure_kafka import TlsKafka
from tests.support.network.certificates import Authority, client_stores


@pytest.fixture(scope="module")
def stores(authority: Authority) -> dict[str, dict[str, str]]:
    """Spark's options of each kind of store."""
    return {
        kind: {"kafka.security.protocol": "SSL", **{f"kafka.{name}": value for name, value in given.items()}}
        for kind, given in client_stores(authority).items()
    }


@pytest.fixture
def filled(spark: Any, tls_kafka: TlsKafka, topic_name: str) -> str:
    """A topic with two partitions, written without TLS."""
    create_topics(tls_kafka.bootstrap_servers, [NewTopic(topic_name, 2)])
    write(spark, tls_kafka.bootstrap_servers, topic_name, {})
    return topic_name


@pytest.mark.parametrize("kind", ["PEM", "JKS", "PKCS12"])
def test_both_connectors_read_the_same_rows(
    spark: Any,
    connector: list[Path],
    tls_kafka: TlsKafka,
    stores: dict[str, dict[str, str]],
    filled: str,
    kind: str,
) -> None:
    if not connector:
        pytest.skip("Spark's Kafka connector is not here")
    options = {"subscribe": filled, **stores[kind]}
    ours, theirs = (read(spark, source, tls_kafka.servers["MUTUAL"], options) for source in (OURS, THEIRS))
    assert ours == theirs
    assert len(ours.rows) == ROWS


def test_every_job_takes_the_same_options(
    spark: Any, tls_kafka: TlsKafka, stores: dict[str, dict[str, str]], topic_name: str, tmp_path: Path
) -> None:
    create_topics(tls_kafka.bootstrap_servers, [NewTopic(topic_name, 2)])
    run_all(spark, tls_kafka.servers["MUTUAL"], topic_name, stores["inline"], tmp_path)


def test_stores_shipped_with_the_job_are_found_by_their_names(
    spark: Any, tls_kafka: TlsKafka, stores: dict[str, dict[str, str]], filled: str, tmp_path: Path
) -> None:
    options = dict(stores["PKCS12"])
    for name, value in stores["PKCS12"].items():
        if name.endswith(".location"):
            shipped = tmp_path / f"{filled}-{Path(value).name}"
            shutil.copy(value, shipped)
            spark.sparkContext.addFile(str(shipped))
            options[name] = shipped.name
    answer = read(spark, OURS, tls_kafka.servers["MUTUAL"], {"subscribe": filled, **options})
    assert len(answer.rows) == ROWS
