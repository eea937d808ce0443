"""``kafkalog zookeeper``: run the ZooKeeper server that is in PySpark's jars."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
from pathlib import Path
from typing import Annotated

import typer

from pyspark_kafkalog.config.zookeeper import ZooKeeperServerConfig

zookeeper = typer.Typer(no_args_is_help=True, help="Run a ZooKeeper server on this machine.")

_START_EPILOG = """\
Examples:

kafkalog zookeeper start

kafkalog zookeeper start conf/zookeeper.properties
"""


@zookeeper.command("start", epilog=_START_EPILOG)
def start(
    properties: Annotated[
        Path | None, typer.Argument(help="zookeeper.properties; defaults apply if omitted.")
    ] = None,
) -> None:
    """Run ZooKeeper until SIGTERM or Ctrl-C. Prints one line on standard output when it is ready."""
    from pyspark_kafkalog.zookeeper.server import ZooKeeperNotStarted, ZooKeeperServer

    config = ZooKeeperServerConfig.load(properties)
    stops: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: stops.put(number))
    with ZooKeeperServer(config) as server:
        secured = f", with TLS on {server.secure_connect}" if config.secure_client_port >= 0 else ""
        # Run even if standard output is closed.
        with contextlib.suppress(OSError):
            os.write(
                1, f"zookeeper listens on {server.connect}{secured}; data in {server.data_dir}\n".encode()
            )
        # Polled: a signal is handled within 0.2 s.
        while stops.empty():
            code = server.wait(0.2)
            if code is not None:
                raise ZooKeeperNotStarted(f"ZooKeeper exited with code {code}")
