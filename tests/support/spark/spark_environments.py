"""Spark's own Kafka connector, and a PySpark of another version with a driver process of its own.

``python -m tests.support.spark.spark_environments`` fetches them; `make interop` does so too.
The connector runs in the suite's own PySpark: give `connector_jars` to `running_session`. An older PySpark is
put before the suite's on PYTHONPATH, and all other packages are the suite's; see `SparkProcess`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.foreign.clients07 import Driver
from tests.support.foreign.fetched import ROOT, announce, fetched, with_maven
from tests.support.foreign.object_stores import ACCOUNT, ACCOUNT_KEY
from tests.support.ledger.s3_server import KEYS
from tests.support.spark.spark_session import environment_of

_SOURCES = ROOT / "tests" / "peers" / "spark"

CONNECTORS = {"4.2.0": "3.9.2", "4.1.1": "3.9.1"}
"""Versions of the connector, and of the Kafka clients that each is made with."""

NEWEST = "4.2.0"
"""There is none for PySpark 4.3, which runs this one."""

OLDEST = "4.1.1"
"""The oldest PySpark with which all of ours works; there is a connector for it, Delta Lake and Iceberg."""

REDUCED = "4.0.0"
"""The oldest PySpark that we work with: without Avro and Protobuf decoded."""

_STOP_SECONDS = 30


def connector_jars(version: str = NEWEST) -> list[Path]:
    """The connector and what it needs beside Spark. Raises `NotAvailable` without Java, Maven or network."""
    versions = [f"-Dspark.version={version}", f"-Dkafka.version={CONNECTORS[version]}"]
    what = f"Spark's Kafka connector {version}"
    pom = _SOURCES / "connector" / "pom.xml"
    return sorted(with_maven(f"spark-kafka-{version}", what, pom, *versions).glob("*.jar"))


def warehouse_jars() -> list[Path]:
    """Delta Lake and Iceberg, for Spark of `OLDEST`. Raises `NotAvailable` as `connector_jars`."""
    pom = _SOURCES / "warehouses" / "pom.xml"
    return sorted(with_maven("spark-warehouses", "Delta Lake and Iceberg", pom).glob("*.jar"))


def s3a_jars() -> list[Path]:
    """What the suite's Spark needs for ``s3a://``. Raises `NotAvailable` as `connector_jars`."""
    return sorted(with_maven("spark-s3a", "Hadoop's s3a", _SOURCES / "s3a" / "pom.xml").glob("*.jar"))


def s3a_configs(endpoint: str) -> dict[str, str]:
    """What a session is started with to reach the server of `s3_server`, beside the JARs."""
    return {f"spark.hadoop.{name}": value for name, value in s3a_keys(endpoint).items()}


def s3a_keys(endpoint: str) -> dict[str, str]:
    """The same as keys of a running session, for a ledger alone."""
    keys = {
        "access.key": KEYS["AWS_ACCESS_KEY_ID"],
        "secret.key": KEYS["AWS_SECRET_ACCESS_KEY"],
        "endpoint": endpoint,
        "endpoint.region": KEYS["AWS_REGION"],
        "path.style.access": "true",
    }
    return {f"fs.s3a.{name}": value for name, value in keys.items()}


def abfs_jars() -> list[Path]:
    """What the suite's Spark needs for ``abfss://``. Raises `NotAvailable` as `connector_jars`."""
    return sorted(with_maven("spark-abfs", "Hadoop's abfs", _SOURCES / "abfs" / "pom.xml").glob("*.jar"))


def abfs_configs(endpoint: str) -> dict[str, str]:
    """What a session needs beside the JARs to reach Azurite at ``abfs://``; ``abfss://`` is TLS."""
    host = f"{ACCOUNT}.dfs.core.windows.net"
    keys = {
        f"account.key.{host}": ACCOUNT_KEY,
        "abfs.endpoint": urlsplit(endpoint).netloc,
        "always.use.https": "false",
        "account.hns.enabled": "false",
        "fns.account.service.type": "BLOB",
        # The other one checks names of hosts.
        "networking.library": "JDK_HTTP_URL_CONNECTION",
    }
    return {f"spark.hadoop.fs.azure.{name}": value for name, value in keys.items()}


def warehouse_configs(directory: Path) -> dict[str, str]:
    """What a session needs beside the JARs; tables of Iceberg are ``ice.db.name``, in ``directory``."""
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    return {
        "spark.sql.extensions": ",".join(extensions),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(directory / "ice"),
        # Small tables: Delta else reads its log in fifty tasks.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
    }


def older_pyspark(version: str = OLDEST) -> Path:
    """The directory to put on PYTHONPATH. Raises `NotAvailable` without PyPI."""
    pin = _SOURCES / f"requirements-{version.rpartition('.')[0]}.txt"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        ".",
        "-r",
        pin.name,
    ]
    return fetched(f"pyspark-{version}", f"PySpark {version}", [pin], install)


class SparkProcess:
    """*Not thread-safe.* A driver process with one session, which calls functions by their names.

    With ``pyspark`` it runs that one instead of the suite's. Its workers find the suite's packages.
    """

    def __init__(
        self,
        log: Path,
        pyspark: Path | None = None,
        jars: Sequence[Path] = (),
        configs: Mapping[str, str] | None = None,
    ) -> None:
        environment = environment_of(pyspark)
        configs = {"spark.jars": ",".join(map(str, jars)), **(configs or {})}
        child = [sys.executable, "-m", "tests.support.spark.spark_calls", json.dumps(configs)]
        self._driver = Driver(
            ["env", *(f"{name}={value}" for name, value in environment.items()), *child], log
        )

    def call(self, function: str, **arguments: Any) -> Any:
        """What ``package.module:name`` returns for the session and the arguments; both travel as JSON.

        Raises:
            ClientError: what it raised, as the exception's name, a colon and its text.
        """
        return self._driver.ask("spark", function, **arguments)["value"]

    def close(self) -> None:
        """End the session and the process; may be called again."""
        self._driver.end(_STOP_SECONDS)


def _fetch_all() -> None:
    """Each by itself, so that one that cannot be had keeps no other away."""
    for version in CONNECTORS:
        announce(f"Spark's Kafka connector {version}", lambda version=version: connector_jars(version))  # type: ignore[misc]
    for version in (OLDEST, REDUCED):
        announce(f"PySpark {version}", lambda version=version: older_pyspark(version))  # type: ignore[misc]
    announce("Delta Lake and Iceberg", warehouse_jars)
    announce("Hadoop's s3a", s3a_jars)
    announce("Hadoop's abfs", abfs_jars)


if __name__ == "__main__":
    _fetch_all()
