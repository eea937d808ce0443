"""The ``kafkalog`` application: commands, and exit codes of errors."""

from __future__ import annotations

import os
import sys
from inspect import cleandoc
from typing import Annotated

import typer

from pyspark_kafkalog import __version__
from pyspark_kafkalog.cli.acls import acls
from pyspark_kafkalog.cli.arguments import ClusterCommands
from pyspark_kafkalog.cli.consume import consuming
from pyspark_kafkalog.cli.dashboard import watching
from pyspark_kafkalog.cli.groups import groups, transactions
from pyspark_kafkalog.cli.ledgers import ledgers
from pyspark_kafkalog.cli.load import loading
from pyspark_kafkalog.cli.offsets import positions
from pyspark_kafkalog.cli.produce import producing
from pyspark_kafkalog.cli.services import mirroring, zookeeper
from pyspark_kafkalog.cli.terminal_output import printable
from pyspark_kafkalog.cli.topics import topics
from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.errors import AuthenticationFailed, InvalidConfig, KafkaError

EPILOG = """\
Name the cluster with --bootstrap-server or the environment variable KAFKALOG_BOOTSTRAP_SERVER. For brokers
before Kafka 0.10, which do not report their version, set KAFKALOG_BROKER_VERSION, such as 0.9.0. Data goes to
standard output, messages and progress to standard error.

Exit codes: 0 success, 1 an error of the cluster, a ledger or a disk, 2 a wrong command or option,
130 interrupted.
"""


def flowing(text: str) -> str:
    """Join each paragraph into a line: typer would keep the source's line breaks."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(text).split("\n\n"))


app = ClusterCommands(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Topics, records, offsets, groups and loads of a Kafka cluster, from the command line.",
    epilog=flowing(EPILOG),
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kafkalog {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


for commands in (producing, consuming, positions, mirroring, watching, loading, ledgers):
    app.add_typer(commands)
app.add_typer(topics, name="topics")
app.add_typer(groups, name="groups")
app.add_typer(transactions, name="transactions")
app.add_typer(acls, name="acls")
app.add_typer(zookeeper, name="zookeeper")


def main() -> None:
    """Console script: an error is one line on standard error and an exit code."""
    try:
        app()
    except KafkaError as e:
        # What a login was refused with is masked where it repeats a secret.
        text = str(e) if isinstance(e, AuthenticationFailed) else masked(str(e))
        text = "\n".join(map(printable, text.split("\n")))
        typer.echo(f"kafkalog: {text}", err=True)
        sys.exit(2 if isinstance(e, InvalidConfig) else 1)
    except OSError as e:  # such as standard output on a full disk, or a missing file
        if sys.stdout is not None:
            # Discard what is still buffered, or Python fails on it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"kafkalog: cannot read or write: {e}", err=True)
        sys.exit(1)
