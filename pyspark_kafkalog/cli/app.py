"""The ``kafkalog`` application: commands, and exit codes of errors."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pyspark_kafkalog import __version__
from pyspark_kafkalog.errors import AuthenticationFailed, InvalidConfig, KafkaError

COMMANDS = {
    "produce": ("produce.producing", "Send records to a topic, one per line of the input."),
    "consume": ("consume.consuming", "Write the records of a topic to standard output."),
    "offsets": ("offsets.positions", "Show the first and the end offset of each partition."),
    "lag": ("offsets.positions", "Show how much a group or a load still has to read."),
    "mirror": ("services.mirroring", "Copy topics from other clusters, at least once."),
    "top": ("dashboard.watching", "Watch brokers, topics, groups and loads in the terminal."),
    "dashboard": ("dashboard.watching", "Watch brokers, topics, groups and loads in a browser."),
    "load": ("load.loading", "Load new records into files, a lake table or a database."),
    "history": ("ledgers.ledgers", "Show the commits of a load, oldest first."),
    "verify": ("ledgers.ledgers", "Check a ledger, and the files and tables of its loads."),
    "gc": ("ledgers.ledgers", "Remove receipts and files that are no longer needed."),
    "rewind": ("ledgers.ledgers", "Make the next load start at an earlier position."),
    "compact": ("ledgers.ledgers", "Merge the small files of many loads."),
    "topics": ("topics.topics", "Create, list, describe, alter and delete topics."),
    "groups": ("groups.groups", "List, describe and delete groups; reset their offsets."),
    "transactions": ("groups.transactions", "List and describe transactions; abort a hanging one."),
    "acls": ("acls.acls", "List, add and remove ACLs: who may do what."),
    "zookeeper": ("services.zookeeper", "Run a ZooKeeper server on this machine."),
}
"""Where each command or group of commands is, imported when it is used, and what `--help` says of it."""

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


class Commands(TyperGroup):
    """Its commands are names and summaries; the real one is imported to be run, explained or completed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else command_named(name), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as typer calls it
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def command_named(name: str) -> Any:
    """The real command or group of commands."""
    module, _, attribute = COMMANDS[name][0].partition(".")
    whole = typer.Typer(rich_markup_mode=None)
    whole.add_typer(getattr(import_module(f"pyspark_kafkalog.cli.{module}"), attribute))
    return typer.main.get_group(whole).commands[name]


app = typer.Typer(
    cls=Commands,
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


for _name, (_, _summary) in COMMANDS.items():
    app.command(_name, help=_summary)(lambda: None)


def main() -> None:
    """Console script: an error is one line on standard error and an exit code."""
    try:
        app()
    except KafkaError as e:
        from pyspark_kafkalog.cli.terminal_output import printable
        from pyspark_kafkalog.config.definition import masked

        # What a login was refused with is masked where it repeats a secret.
        text = str(e) if isinstance(e, AuthenticationFailed) else masked(str(e))
        text = "\n".join(map(printable, text.split("\n")))
        typer.echo(f"kafkalog: {text}", err=True)
        sys.exit(2 if isinstance(e, InvalidConfig) else 1)
    except ModuleNotFoundError as e:
        from pyspark_kafkalog.extras import needs

        missing = needs("this command", e)
        if missing is e:
            raise
        typer.echo(f"kafkalog: {missing}", err=True)
        sys.exit(1)
    except OSError as e:  # such as standard output on a full disk, or a missing file
        if sys.stdout is not None:
            # Discard what is still buffered, or Python fails on it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"kafkalog: cannot read or write: {e}", err=True)
        sys.exit(1)
