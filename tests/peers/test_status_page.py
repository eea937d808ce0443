"""The status page in a browser: what stands in it once its script has asked."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import pyspark_kafkalog as kafkalog
from broker.embedded import start_broker
from tests.support.foreign.apache_kafka import free_ports

WAVES = 3


def test_chromium_shows_topics_groups_and_plots(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not here: apt-get install chromium")
    (port,) = free_ports(1)
    with start_broker({"metrics.listener": f"127.0.0.1:{port}", "num.partitions": 2}) as broker:
        servers = broker.bootstrap_servers
        for _ in range(WAVES):
            with kafkalog.Producer({"bootstrap.servers": servers}) as producer:
                for _ in range(500):
                    producer.send("flights", b"x" * 100, partition=1)
            time.sleep(5)
        with kafkalog.Consumer({"bootstrap.servers": servers, "group.id": "board"}) as consumer:
            consumer.assign(consumer.partitions_for("flights"))
            consumer.commit({consumer.partitions_for("flights")[1]: 400})
        time.sleep(6)
        page = subprocess.run(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
             "--virtual-time-budget=4000", "--dump-dom", f"http://127.0.0.1:{port}/"],
            capture_output=True, text=True, timeout=90, check=True,
        ).stdout  # fmt: skip
    cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", page)]
    assert cells[cells.index("flights") :][:4] == ["flights", "2", "0", "1,500"]
    assert cells[cells.index("board") :][:4] == ["board", "Empty", "0", "1,100"]
    assert cells[-1] == f"127.0.0.1:{broker.port}"
    assert len(re.findall(r'<svg[^>]* class="plot"[^>]*><polyline points="[\d., ]+"', page)) == 2
    assert 'id="problems" hidden' in page
