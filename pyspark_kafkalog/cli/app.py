"""The commands of ``kafkalog`` put together, and what becomes of their errors."""

from __future__ import annotations

import sys

import typer

from pyspark_kafkalog.cli import loads
from pyspark_kafkalog.cli.topics import topics
from pyspark_kafkalog.errors import InvalidConfig, KafkaError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Look after a Kafka cluster's topics from the command line.",
    epilog="Exit codes: 0 done, 1 the cluster said no or could not be reached, 2 the command was wrong.",
)
app.add_typer(topics, name="topics")
loads.register(app)


@app.callback()
def _main() -> None:
    # With one group of commands typer would leave its name out; there will be more.
    pass


def main() -> None:
    """The console script: one line and an exit code for whatever goes wrong."""
    try:
        app()
    except KafkaError as e:
        typer.echo(f"kafkalog: {e}", err=True)
        sys.exit(2 if isinstance(e, InvalidConfig) else 1)
