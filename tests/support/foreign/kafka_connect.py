"""A worker of Kafka Connect with Iceberg's sink, fetched by Maven.

``python -m tests.support.foreign.kafka_connect`` fetches it; `make interop` does so too.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from tests.support.foreign.apache_kafka import QUICK, java
from tests.support.foreign.fetched import ROOT, announce, with_maven
from tests.support.foreign.ports import free_ports
from tests.support.until import until

WHAT = "Kafka Connect with Iceberg's sink"
AS_SHIPPED = ("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""Options of Connect's own start script, for what is measured."""

_POMS = ROOT / "tests" / "peers" / "connect"
_START_SECONDS = 240
_BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
_TRANSFORMS = "org.apache.kafka.connect.transforms"


def fetch() -> tuple[Path, Path]:
    """The directories with the worker's jars and the sink's. Raises `NotAvailable` as `with_maven`."""
    return (
        with_maven("connect-worker", WHAT, _POMS / "worker" / "pom.xml"),
        with_maven("connect-iceberg", WHAT, _POMS / "iceberg" / "pom.xml"),
    )


class IcebergSinks:
    """*Not thread-safe.* A worker whose sinks write into tables of one catalog, in ``directory``."""

    def __init__(self, servers: str, directory: Path, options: Sequence[str] = QUICK) -> None:
        """Start it. Raises `NotAvailable`."""
        worker, sink = fetch()
        directory.mkdir(parents=True, exist_ok=True)
        plugins = directory / "plugins"
        plugins.mkdir()
        (plugins / "iceberg").symlink_to(sink)
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._catalog_file, self._warehouse = directory / "catalog.db", f"file://{directory}/warehouse"
        properties = {
            "bootstrap.servers": servers,
            "key.converter": _BYTES,
            "value.converter": _BYTES,
            "offset.storage.file.filename": directory / "offsets",
            "plugin.path": plugins,
            "listeners": self._url,
        }
        file = directory / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self.log_file = directory / "worker.log"
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                java(worker, main, file, options=options), stdout=log, stderr=log
            )
        try:
            until(self._serves, seconds=_START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def processor_seconds(self) -> float:
        used = psutil.Process(self._process.pid).cpu_times()
        return float(used.user + used.system)

    def begin(self, name: str, topic: str, tasks: int, commit_every_ms: int, **more: str) -> None:
        """A sink of this name, from the topic's beginning into the table ``db.<name>``: value, topic,
        partition, offset and timestamp of each record. ``more`` are properties of the table.
        """
        place = {f"{column}.field": column for column in ("topic", "partition", "offset", "timestamp")}
        properties = {
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "topics": topic,
            "tasks.max": str(tasks),
            "consumer.override.auto.offset.reset": "earliest",
            "iceberg.tables": f"db.{name}",
            "iceberg.tables.auto-create-enabled": "true",
            "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "iceberg.catalog.uri": f"jdbc:sqlite:{self._catalog_file}",
            "iceberg.catalog.jdbc.schema-version": "V1",
            "iceberg.catalog.warehouse": self._warehouse,
            "iceberg.control.topic": f"control-{name}",
            "iceberg.control.commit.interval-ms": str(commit_every_ms),
            "transforms": "hoist,place",
            "transforms.hoist.type": f"{_TRANSFORMS}.HoistField$Value",
            "transforms.hoist.field": "value",
            "transforms.place.type": f"{_TRANSFORMS}.InsertField$Value",
            **{f"transforms.place.{key}": value for key, value in place.items()},
            **{f"iceberg.tables.auto-create-props.{key}": value for key, value in more.items()},
        }
        self._ask("/connectors", {"name": name, "config": properties})

    def end(self, name: str) -> None:
        """Its table stays."""
        with urlopen(Request(f"{self._url}/connectors/{name}", method="DELETE")):
            pass

    def table(self, name: str) -> Table | None:
        """None until the sink has made it."""
        catalog = load_catalog(
            "iceberg", type="sql", uri=f"sqlite:///{self._catalog_file}", warehouse=self._warehouse
        )
        try:
            return catalog.load_table(f"db.{name}")
        except NoSuchTableError:
            return None
        finally:
            catalog.close()

    def rows(self, name: str) -> int:
        """How many are committed."""
        table = self.table(name)
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary["total-records"] or 0)

    def _serves(self) -> bool:
        try:
            self._ask("/")
        except OSError:
            assert self._process.poll() is None, self.log_file.read_text(errors="replace")[-2000:]
            return False
        return True

    def _ask(self, path: str, order: Mapping[str, Any] | None = None) -> Any:
        body = None if order is None else json.dumps(order).encode()
        request = Request(self._url + path, body, {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            return json.load(answer)


if __name__ == "__main__":
    announce(WHAT, fetch)
