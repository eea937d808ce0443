"""The command line's parser, exit codes and error messages; and the command ``properties``.

Exit codes: 0 done, 1 failed, 2 wrong arguments or configuration. An expected failure is one line on standard
error.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from kafkalog_broker.cli import add_user, dump_log, export, forget, secure_init, start, stop, verify_log
from kafkalog_broker.cli.commands import DONE, FAILED, MISUSED, PROGRAM, fail, say
from kafkalog_broker.config.broker_config import BrokerConfig
from pyspark_kafkalog.config.properties import properties_file
from pyspark_kafkalog.errors import InvalidConfig, KafkaError

_INTERRUPTED = 130
"""A shell's exit code for a process ended by SIGINT."""

_EXAMPLES = """\
examples:
  python -m kafkalog_broker start conf/server.properties
  python -m kafkalog_broker stop conf/server.properties
  python -m kafkalog_broker verify-log kafkalog-data
  python -m kafkalog_broker dump-log --records kafkalog-data/my_topic_0
  python -m kafkalog_broker export kafkalog-data /srv/for-kafka
each command has more: python -m kafkalog_broker COMMAND --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    _print_anything()
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except InvalidConfig as e:
        return fail(e, MISUSED)
    except BrokenPipeError:
        # The reader has closed the pipe. Discard what is still buffered, or the flush at exit fails too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except (KafkaError, OSError) as e:
        return fail(e, FAILED)
    except KeyboardInterrupt:
        say("interrupted")
        return _INTERRUPTED


def _print_anything() -> None:
    """Escape characters that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="A small Kafka broker (one machine, no replicas), and what looks after its logs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = getattr(sys.modules["pyspark_kafkalog"], "__version__", "unknown")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    start.add_parser(commands)
    stop.add_parser(commands)
    properties = commands.add_parser(
        "properties", help="print every property with its meaning, range and default"
    )
    properties.set_defaults(run=_print_properties)
    for command in (secure_init, add_user, dump_log, verify_log, export, forget):
        command.add_parser(commands)
    return parser


def _print_properties(_: argparse.Namespace) -> int:
    sys.stdout.write(properties_file(BrokerConfig, "The broker's properties, each with its default."))
    return DONE
