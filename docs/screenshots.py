"""``python -m docs.screenshots`` writes docs/images/status-*.png: the status page of a busy little cluster.

It takes two minutes, and needs Chromium (``make chromium``) and Java, for ZooKeeper.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyspark_kafkalog as kafkalog
from kafkalog_broker.embedded import start_cluster
from pyspark_kafkalog.types import TopicPartition
from tests.support.foreign.chromium import Page, opened
from tests.support.ledger.plans import facts, loaded

IMAGES = Path(__file__).resolve().parent / "images"
PHONE = (390, 844)
_SECONDS = 100
_TOPICS = {"flights": (6, 120), "views": (4, 60), "orders": (3, 25), "audit": (1, 2)}
"""Partitions of each topic, and records of a round."""
_GROUPS = {
    "dashboard": (("flights", "views"), 110),
    "billing": (("orders",), 30),
    "archive": (("flights",), 60),
}
"""Topics of each consumer group, and records that it reads in a round."""
_ROUND_SECONDS = 0.1


def main() -> None:
    ended = threading.Event()
    with (
        tempfile.TemporaryDirectory() as ledgers,
        start_cluster(3) as brokers,
    ):
        servers = brokers.bootstrap_servers
        topics = [kafkalog.NewTopic(name, count) for name, (count, _) in _TOPICS.items()]
        kafkalog.create_topics(servers, topics)
        work = [threading.Thread(target=_write, args=(servers, ended))]
        work += [threading.Thread(target=_read, args=(servers, group, ended)) for group in _GROUPS]
        for thread in work:
            thread.start()
        dashboard = subprocess.Popen(
            [sys.executable, "-m", "pyspark_kafkalog.cli", "dashboard", "-b", servers,
             "--listen", "127.0.0.1:0", "--ledger", ledgers],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert dashboard.stderr is not None
            url = dashboard.stderr.readline().split()[0]
            time.sleep(_SECONDS)
            _load(ledgers)
            time.sleep(10)
            _take_pictures(f"{url}/")
        finally:
            ended.set()
            dashboard.terminate()
            for thread in work:
                thread.join()


def _take_pictures(url: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    with opened(url) as page:
        _filled(page)
        page.picture(IMAGES / "status-light.png", whole=True)
    with opened(url, dark=True) as page:
        _filled(page)
        area = page.value("document.querySelector('#rate .area').getBoundingClientRect().toJSON()")
        page.point(area["left"] + 0.7 * area["width"], area["top"] + 40)
        page.value("document.querySelector('#topics button').click()")
        page.until("document.querySelectorAll('#partitions tbody tr').length > 1")
        page.picture(IMAGES / "status-dark.png", whole=True)
    with opened(url, width=PHONE[0], height=PHONE[1], phone=True) as page:
        _filled(page)
        page.picture(IMAGES / "status-phone.png", whole=True)


def _filled(page: Page) -> None:
    page.until("document.querySelectorAll('#topics tbody tr').length > 1")


def _write(servers: str, ended: threading.Event) -> None:
    """In waves, each topic at its own time."""
    with kafkalog.Producer({"bootstrap.servers": servers, "linger.ms": 20}) as producer:
        tick = 0
        while not ended.wait(_ROUND_SECONDS):
            tick += 1
            for at, (topic, (_, most)) in enumerate(_TOPICS.items()):
                for n in range(round(most * (1 + 0.5 * math.sin(tick / 60 + at)))):
                    producer.send(topic, b"x" * 100, str(n).encode())


def _read(servers: str, group: str, ended: threading.Event) -> None:
    topics, most = _GROUPS[group]
    with kafkalog.Consumer(
        {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.subscribe(list(topics))
        while not ended.wait(_ROUND_SECONDS):
            consumer.poll(0.01, max_records=most)


def _load(ledgers: str) -> None:
    """Two loads, as if Spark had run them."""
    for name, topic in (("flights-hourly", "flights"), ("orders-nightly", "orders")):
        ledger = kafkalog.Ledger.at(ledgers, name)
        ledger.identify("", {"subscribe": topic})
        numbers = range(_TOPICS[topic][0])
        loaded(ledger, {TopicPartition(topic, n): facts(0, 500, topic_id="") for n in numbers})


if __name__ == "__main__":
    main()
