"""``start``: the broker in this process, until it is stopped."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import queue
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from kafkalog_broker.cli.commands import DONE, FAILED, Commands, add_command, fail
from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.scheduler import next_of
from kafkalog_broker.server.broker import starting
from pyspark_kafkalog.clock import SYSTEM_CLOCK
from pyspark_kafkalog.errors import InvalidConfig, KafkaError

if TYPE_CHECKING:
    from kafkalog_broker.server.broker import Broker

logger = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_IMPATIENT_SECONDS = 1.0
"""A second signal within this time is ignored: a terminal and a wrapper may both send one."""
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_EXAMPLES = """\
examples:
  python -m kafkalog_broker start
      on 127.0.0.1:9092, with its data in ./kafkalog-data
  python -m kafkalog_broker start conf/server.properties
  python -m kafkalog_broker start --override listeners=PLAINTEXT://:19092 --override log.dirs=/srv/kafkalog
      for other machines too; --override goes before the file
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands, "start", _run,
        summary="serve until SIGTERM or Ctrl-C",
        description="Serve until SIGTERM or Ctrl-C; a second one does not wait for a graceful stop.",
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument(
        "properties", nargs="?", type=Path, metavar="FILE",
        help="server.properties, see the command properties; defaults apply if omitted",
    )  # fmt: skip
    parser.add_argument(
        "--override", action="append", default=[], type=_override, metavar="NAME=VALUE",
        help="a property that goes before the file's; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--log-level",
        choices=_LEVELS,
        default="INFO",
        help="what is logged to standard error (default: INFO)",
    )
    parser.add_argument(
        "--log-config", type=Path, metavar="FILE", help="a logging.ini instead, see conf/logging.ini"
    )


def _run(options: argparse.Namespace) -> int:
    _set_up_logging(options.log_config, options.log_level)
    return serve(BrokerConfig.load(options.properties, dict(options.override)))


def serve(config: BrokerConfig) -> int:
    """Start a broker, serve until SIGTERM or SIGINT, stop gracefully; returns the exit code.

    A signal during startup takes effect after it, so that it does not interrupt recovery. Another one, at
    least a second later, ends the process at once; the next start recovers.
    """
    stops: queue.SimpleQueue[int] = queue.SimpleQueue()
    asked_at: list[float] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        now = SYSTEM_CLOCK.monotonic()
        if not asked_at:
            asked_at.append(now)
            stops.put(number)
        elif now - asked_at[0] >= _IMPATIENT_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in _STOP_SIGNALS:
        signal.signal(number, stop)
    # Imported late, so that a mistake in the configuration is reported at once.
    from kafkalog_broker.network.socket_server import share_the_interpreter
    from kafkalog_broker.server.broker import Broker

    share_the_interpreter()
    try:
        with starting():
            broker = Broker(config)
            broker.start()
    except (KafkaError, OSError) as e:
        return fail(e, FAILED)
    _announce(broker, config)
    logger.info("%s: stopping", signal.Signals(next_of(stops)).name)
    try:
        broker.stop()
    except (KafkaError, OSError) as e:
        return fail(e, FAILED)
    return DONE


def _announce(broker: Broker, config: BrokerConfig) -> None:
    """Write the only line on standard output, for which scripts may wait."""
    advertised, ports = broker.advertised(), broker.ports
    addresses = []
    for endpoint in config.endpoints:
        listening = endpoint._replace(port=ports[endpoint.name])
        host, port = advertised[endpoint.name]
        same = (host, port) == (listening.host, listening.port)
        addresses.append(str(listening) if same else f"{listening}, advertised as {host}:{port}")
    directories = ", ".join(str(path.absolute()) for path in config.directories())
    line = (
        f"broker {config.node_id} listens on {' and '.join(addresses)}; "
        f"cluster id {broker.cluster_id}; data in {directories}\n"
    )
    # Serve even if standard output is closed.
    with contextlib.suppress(OSError):
        os.write(1, line.encode())


def _set_up_logging(path: Path | None, level: str) -> None:
    if path is None:
        logging.basicConfig(level=level, format=_LOG_FORMAT, stream=sys.stderr)
        return
    from logging.config import fileConfig  # imported only if needed

    if not os.access(path, os.R_OK):
        raise InvalidConfig(f"cannot read {path}")
    try:
        fileConfig(path, disable_existing_loggers=False)
    except Exception as e:
        # It may raise anything, as parts of the file are passed to eval().
        raise InvalidConfig(f"{path} is not a logging configuration: {type(e).__name__}: {e}") from e


def _override(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name.strip(), value
