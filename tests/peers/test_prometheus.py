"""Prometheus itself reads what the broker and a load serve, and answers each query of the dashboard."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.parse
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import start_broker
from tests.support.foreign.ports import free_ports
from tests.support.until import until

DASHBOARD = Path(__file__).resolve().parents[2] / "conf" / "grafana-loads.json"
NO_PROMETHEUS = "no Prometheus here: make prometheus installs Debian's"
CONFIGURATION = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
- job_name: kafkalog
  static_configs: [{targets: [%s]}]
"""


def asked(prometheus: str, query: str) -> list[dict[str, Any]]:
    """The answer to a query now; nothing while Prometheus starts."""
    try:
        with urlopen(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}") as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return result
    except OSError:
        return []


@pytest.mark.skipif(shutil.which("prometheus") is None, reason=NO_PROMETHEUS)
def test_prometheus_reads_a_broker_and_a_load_and_answers_the_dashboard(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with start_broker({"metrics.listener": "127.0.0.1:0"}) as broker:
        with kafkalog.Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for _ in range(20):
                producer.send("flights", b"x")
        load = subprocess.Popen(
            [
                sys.executable, "-m", "pyspark_kafkalog.cli", "load", "flights", "-b",
                broker.bootstrap_servers, "--topic", "flights", "--to", str(tmp_path / "flights"),
                "--offsets", str(tmp_path / "offsets"), "--every", "1s", "--metrics-listener", "127.0.0.1:0",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert load.stderr is not None
        of_load = load.stderr.readline().strip().removeprefix("metrics: ")
        urls = [f"{broker.status_url}/metrics", of_load]
        targets = [urllib.parse.urlsplit(url).netloc for url in urls]
        (tmp_path / "prometheus.yml").write_text(CONFIGURATION % ", ".join(f"'{each}'" for each in targets))
        prometheus = subprocess.Popen(
            [
                "prometheus", f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        here = f"http://127.0.0.1:{port}"
        try:
            until(lambda: len(asked(here, "up == 1")) == 2)
            until(lambda: asked(here, 'kafkalog_load_records_total{load="flights"} == 20'))
            until(lambda: asked(here, 'kafkalog_broker_requests_total{api="PRODUCE"} > 0'))
            queries = [
                target["expr"].replace("$load", "flights")
                for panel in json.loads(DASHBOARD.read_text())["panels"]
                for target in panel["targets"]
            ]
            for query in queries:
                (found,) = until(partial(asked, here, query))
                assert found["metric"]["load"] == "flights"
            for url in urls:
                with urlopen(url) as answer:
                    checked = subprocess.run(
                        ["promtool", "check", "metrics"], input=answer.read(), capture_output=True
                    )
                assert (checked.returncode, checked.stderr.decode()) == (0, "")
        finally:
            for process in (load, prometheus):
                process.terminate()
                process.communicate()
