"""``stop``: sends SIGTERM to the broker of a data directory, and waits for it to end."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from kafkalog_broker.cli.commands import DONE, FAILED, Commands, add_command, directories_of, say
from kafkalog_broker.disk.data_directory import LOCK_NAME
from kafkalog_broker.disk.process_lock import Holder, holder_of, is_held
from pyspark_kafkalog.clock import SYSTEM_CLOCK

_TIMEOUT_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_TELL_SECONDS = 2.0

_EXAMPLES = """\
examples:
  python -m kafkalog_broker stop
      the broker that was started without a file: its data is in ./kafkalog-data
  python -m kafkalog_broker stop /srv/kafkalog
  python -m kafkalog_broker stop conf/server.properties --timeout 120

Exit codes: 0 it has stopped, 1 none runs or it has not stopped in time, 2 there is no such directory.
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands, "stop", _run,
        summary="stop the broker of a data directory, and wait until it has",
        description="Find the broker that holds a data directory, send it SIGTERM and wait until it is gone.",
        examples=_EXAMPLES,
    )  # fmt: skip
    parser.add_argument(
        "place", nargs="?", type=Path, metavar="DATA_DIR",
        help="a data directory, or the properties file that the broker was started with",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=_seconds, default=_TIMEOUT_SECONDS, metavar="SECONDS",
        help="how long to wait for it to be gone (default: 30)",
    )  # fmt: skip


def _run(options: argparse.Namespace) -> int:
    directories = directories_of(options.place)
    held = next((path for path in directories if is_held(path / LOCK_NAME)), None)
    if held is None:
        say(f"no broker runs on {', '.join(map(str, directories))}")
        return FAILED
    holder = holder_of(held / LOCK_NAME)
    if holder is None or not holder.alive:
        say(
            f"a broker holds {held}, whose process is not known"
            if holder is None
            else f"a broker holds {held} and says that it is process {holder.pid}, which cannot be seen from"
            " here: stop it on the machine, in the container or as the user that it runs as"
        )
        return FAILED
    try:
        holder.send(signal.SIGTERM)
    except PermissionError:
        say(f"the broker on {held} is process {holder.pid} of another user, who must stop it")
        return FAILED
    return _wait(holder, held, options.timeout)


def _wait(holder: Holder, held: Path, timeout: float) -> int:
    began = SYSTEM_CLOCK.monotonic()
    logged = began
    say(f"asked process {holder.pid}, the broker on {held}, to stop")
    while holder.alive:
        now = SYSTEM_CLOCK.monotonic()
        if now - began >= timeout:
            say(f"process {holder.pid} has not stopped after {timeout:g} s; it may still do so")
            return FAILED
        if now - logged >= _TELL_SECONDS:
            logged = now
            say(f"process {holder.pid} is still stopping after {now - began:.0f} s of {timeout:g} s")
        SYSTEM_CLOCK.sleep(_LOOK_SECONDS)
    sys.stdout.write(f"the broker on {held} has stopped\n")
    return DONE


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value
