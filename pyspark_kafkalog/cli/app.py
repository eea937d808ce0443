"""The commands of ``kafkalog`` put together, and what becomes of their errors."""

from __future__ import annotations

import sys
from inspect import cleandoc

import typer

from pyspark_kafkalog.cli import loads
from pyspark_kafkalog.cli.consume import CONSUME_EPILOG, consume
from pyspark_kafkalog.cli.groups import groups
from pyspark_kafkalog.cli.lag import LAG_EPILOG, lag
from pyspark_kafkalog.cli.offsets import OFFSETS_EPILOG, offsets
from pyspark_kafkalog.cli.produce import PRODUCE_EPILOG, produce
from pyspark_kafkalog.cli.topics import topics
from pyspark_kafkalog.cli.zookeeper import zookeeper
from pyspark_kafkalog.errors import InvalidConfig, KafkaError

EPILOG = """\
The cluster is that of --bootstrap-server, or of the variable KAFKALOG_BOOTSTRAP_SERVER. Data goes to standard
output, words and progress to standard error.

Exit codes: 0 done, 1 the cluster said no or could not be reached, 2 the command was wrong.
"""


def flowing(text: str) -> str:
    """Paragraphs without the line ends of their source, which typer would keep."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(text).split("\n\n"))


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Topics, records, offsets, groups and loads of a Kafka cluster, from the command line.",
    epilog=flowing(EPILOG),
)
app.add_typer(topics, name="topics")
for name, command, examples in (
    ("produce", produce, PRODUCE_EPILOG),
    ("consume", consume, CONSUME_EPILOG),
    ("offsets", offsets, OFFSETS_EPILOG),
    ("lag", lag, LAG_EPILOG),
):
    app.command(name, help=flowing(command.__doc__ or ""), epilog=examples)(command)
app.add_typer(groups, name="groups")
app.add_typer(zookeeper, name="zookeeper")
loads.register(app)


def main() -> None:
    """The console script: one line and an exit code for whatever goes wrong."""
    try:
        app()
    except KafkaError as e:
        typer.echo(f"kafkalog: {e}", err=True)
        sys.exit(2 if isinstance(e, InvalidConfig) else 1)
