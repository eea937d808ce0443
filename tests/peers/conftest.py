"""Peers for all tests: Apache Kafka and its tools, Spark's connector, clients of 0.7. The rest is skipped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kafkalog_broker
from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.client.admin import NewTopic, create_topics
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ConsumerConfig
from tests.support.datasource.both_connectors import BROKERS, Both
from tests.support.foreign.apache_kafka import VERSIONS, ApacheKafka, fetch, run_tool
from tests.support.foreign.clients07 import Driver
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.mini_hdfs import MiniHdfs
from tests.support.foreign.object_stores import azurite, azurite_program
from tests.support.foreign.secure_kafka import TlsKafka
from tests.support.ledger.s3_server import s3_server
from tests.support.network.certificates import Authority
from tests.support.spark.spark_environments import (
    SparkProcess,
    abfs_configs,
    abfs_jars,
    connector_jars,
    s3a_configs,
    s3a_jars,
)
from tests.support.spark.spark_session import running_session

_numbers = itertools.count()

Tool = Callable[..., str]


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Where Kafka's jars are; skips the test where there are none, and says why."""
    try:
        return fetch()
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka is not here: {e}")


@pytest.fixture(scope="session")
def dump_log_segments(kafka_jars: Path) -> Tool:
    """``kafka-dump-log`` with the arguments given; returns what it writes."""
    return lambda *arguments: run_tool(kafka_jars, "kafka.tools.DumpLogSegments", *arguments)


@pytest.fixture(scope="session")
def apache_kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A running broker that all tests share: each makes topics of its own."""
    # Compacted topics are compacted at once.
    kafka = ApacheKafka(kafka_jars, tmp_path_factory.mktemp("kafka"), log_cleaner_backoff_ms="200")
    try:
        yield kafka.start()
    finally:
        kafka.stop()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority for the certificates of a file's tests."""
    return Authority.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=VERSIONS, ids=["3.9", "4.1"])
def tls_kafka(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsKafka]:
    """Apache Kafka with TLS, for a file's tests."""
    try:
        jars = fetch(request.param)
    except NotAvailable as e:
        pytest.skip(f"Apache Kafka is not here: {e}")
    kafka = TlsKafka(jars, tmp_path_factory.mktemp("tls-kafka"), authority)
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.stop()


def _driver(start: Callable[[Path], Driver], directory: Path) -> Iterator[Driver]:
    try:
        driver = start(directory)
    except NotAvailable as e:
        pytest.skip(f"clients of Kafka 0.7 are not here: {e}")
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def node_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """prozess and kafka of npm."""
    yield from _driver(Driver.for_node, tmp_path_factory.mktemp("node-clients"))


@pytest.fixture(scope="session")
def python2_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """brod, pykafka and samsa of PyPI."""
    yield from _driver(Driver.for_python2, tmp_path_factory.mktemp("python2-clients"))


class SparkAtAzure(NamedTuple):
    """A driver process whose session writes to ``url``, a container."""

    process: SparkProcess
    url: str


@pytest.fixture(scope="session")
def s3a(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """Spark whose session writes to ``s3a://ledgers/...``; all tests share it, each with paths of its own."""
    try:
        jars = s3a_jars()
    except NotAvailable as e:
        pytest.skip(f"Hadoop's s3a is not here: {e}")
    with s3_server() as port:
        log = tmp_path_factory.mktemp("s3a") / "spark.log"
        process = SparkProcess(log, jars=jars, configs=s3a_configs(f"http://127.0.0.1:{port}"))
        yield process
        process.close()


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniHdfs]:
    """An HDFS for all tests, each with paths of its own."""
    try:
        running = MiniHdfs(tmp_path_factory.mktemp("hdfs")).start()
    except NotAvailable as e:
        pytest.skip(f"HDFS is not here: {e}")
    yield running
    running.kill()


@pytest.fixture(scope="session")
def plain_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A driver process with Spark as it comes from PyPI."""
    process = SparkProcess(tmp_path_factory.mktemp("plain-spark") / "spark.log")
    yield process
    process.close()


@pytest.fixture(scope="session")
def abfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkAtAzure]:
    """Spark with Azurite; all tests share it, each with paths of its own."""
    directory = tmp_path_factory.mktemp("abfs")
    try:
        jars = abfs_jars()
        azurite_program()
    except NotAvailable as e:
        pytest.skip(f"Hadoop's abfs or Azurite is not here: {e}")
    with azurite(directory / "azurite.log") as server:
        configs = abfs_configs(server.environment["AZURE_STORAGE_ENDPOINT"])
        process = SparkProcess(directory / "spark.log", jars=jars, configs=configs)
        yield SparkAtAzure(process, server.url)
        process.close()


@pytest.fixture(scope="session")
def connector() -> list[Path]:
    """The jars of Spark's own Kafka connector; none where they cannot be had."""
    try:
        return connector_jars()
    except NotAvailable:
        return []


@pytest.fixture(scope="session")
def spark(connector: list[Path]) -> Iterator[Any]:
    """One session for all tests that read with Spark; ``format("kafka")`` too, if it can be had."""
    jars = {"spark.jars": ",".join(map(str, connector))} if connector else {}
    with running_session(jars) as session:
        yield session


@pytest.fixture(scope="session")
def own_broker() -> Iterator[EmbeddedBroker]:
    """The bundled broker, for all tests: each makes topics of its own."""
    settings = {"auto.create.topics.enable": "false", "log.retention.ms": "-1"}
    with kafkalog_broker.start_broker(settings) as running:
        yield running


@pytest.fixture(scope="session", params=BROKERS)
def servers_of_each(request: pytest.FixtureRequest) -> str:
    """Where a test is run twice: with a Kafka of Apache, and with our broker; see `at_kafka` for once."""
    fixture = "apache_kafka" if request.param == BROKERS[0] else "own_broker"
    servers: str = request.getfixturevalue(fixture).bootstrap_servers
    return servers


@pytest.fixture(scope="session")
def both_of(spark: Any, connector: list[Path]) -> Callable[[str], Both]:
    """Spark's connector and ours at the servers given; skips the test where there is but one of them."""
    if not connector:
        pytest.skip("Spark's Kafka connector is not here")
    return lambda servers: Both(spark, servers)


@pytest.fixture
def both(both_of: Callable[[str], Both], servers_of_each: str) -> Both:
    """The two, at each of the brokers."""
    return both_of(servers_of_each)


@pytest.fixture
def both_at_kafka(both_of: Callable[[str], Both], apache_kafka: ApacheKafka) -> Both:
    """The two at Apache Kafka, for what our broker cannot."""
    return both_of(apache_kafka.bootstrap_servers)


@pytest.fixture
def topic_name() -> str:
    """A name that no other test uses."""
    return f"peers-{next(_numbers)}"


@pytest.fixture
def servers(apache_kafka: ApacheKafka) -> str:
    """Where Apache Kafka listens."""
    return apache_kafka.bootstrap_servers


@pytest.fixture
def topic(servers: str, topic_name: str) -> str:
    """A topic of Apache Kafka with two partitions."""
    create_topics(servers, [NewTopic(topic_name, 2)])
    return topic_name


@pytest.fixture
def cluster(servers: str) -> Iterator[Cluster]:
    """Apache Kafka as our clients see it."""
    with closing(Cluster(ConsumerConfig(bootstrap_servers=servers))) as made:
        yield made
