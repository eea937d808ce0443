"""``python -m docs.screenshots`` writes docs/images/status-*.png: the status page of a busy little cluster.

It needs Chromium (Debian: ``apt-get install chromium``).
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pyspark_kafkalog as kafkalog
from broker.embedded import start_broker
from tests.support.foreign.apache_kafka import free_ports

IMAGES = Path(__file__).resolve().parent / "images"
SHOTS = {"light": (1100, 900, ()), "dark": (1100, 900, ("--force-dark-mode",)), "phone": (500, 1000, ())}
"""Width, height and arguments. No window of Chromium's is narrower than 500."""
_SECONDS = 45


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is not installed: apt-get install chromium")
    (port,) = free_ports(1)
    ended = threading.Event()
    with start_broker({"metrics.listener": f"127.0.0.1:{port}", "num.partitions": 3}) as broker:
        work = threading.Thread(target=_work, args=(broker.bootstrap_servers, ended))
        work.start()
        time.sleep(_SECONDS)
        IMAGES.mkdir(exist_ok=True)
        for name, (width, height, more) in SHOTS.items():
            with tempfile.TemporaryDirectory() as profile:
                subprocess.run(
                    [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *more,
                     f"--user-data-dir={profile}", f"--window-size={width},{height}",
                     "--virtual-time-budget=4000", f"--screenshot={IMAGES / f'status-{name}.png'}",
                     f"http://127.0.0.1:{port}/"],
                    check=True, stderr=subprocess.DEVNULL, timeout=60,
                )  # fmt: skip
        ended.set()
        work.join()


def _work(servers: str, ended: threading.Event) -> None:
    """Writes in waves, and reads too slowly."""
    with (
        kafkalog.Producer({"bootstrap.servers": servers, "linger.ms": 20}) as producer,
        kafkalog.Consumer(
            {"bootstrap.servers": servers, "group.id": "dashboard", "auto.offset.reset": "earliest"}
        ) as consumer,
    ):
        consumer.subscribe(["flights", "views"])
        tick = 0
        while not ended.is_set():
            tick += 1
            for n in range(200 + 150 * (tick // 20 % 3)):
                producer.send("flights", b"x" * 120, str(n).encode())
            for n in range(60):
                producer.send("views", b"y" * 60, str(n).encode())
            consumer.poll(0.05, max_records=250)
            time.sleep(0.05)


if __name__ == "__main__":
    main()
