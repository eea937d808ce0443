"""``kafkalog compact``: the small files of many loads in a few large ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_kafkalog.cli.loads import Name, Offsets, open_ledger
from pyspark_kafkalog.cli.terminal_output import counted, size

if TYPE_CHECKING:
    from pyspark_kafkalog.ledger.ledger import Ledger

COMPACT_EPILOG = """\
Examples:

kafkalog compact flights --offsets /lake/_offsets --dry-run

kafkalog compact flights --offsets /lake/_offsets --to /lake/flights --target-size 256MB
"""


def compact(
    name: Name,
    offsets: Offsets,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Only files in this directory; default: all of the load."),
    ] = None,
    target_size: Annotated[
        str, typer.Option("--target-size", help="Approximate size of the new files: 64MB, 128MB, 1GB.")
    ] = "128MB",
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be merged.")] = False,
) -> None:
    """Merge the small files of many loads into a few large ones, with one commit per directory.

    Rows and their load numbers stay the same. The replaced files stay until `gc` removes them.
    """
    ledger, target = open_ledger(name, offsets), _bytes(target_size)
    small = _small(ledger, to, target)
    for path, files, bytes_ in small:
        typer.echo(f"{path}: {counted(files, 'small file')} with {size(bytes_)}")
    if not small:
        typer.echo("nothing to compact")
    if dry_run or not small:
        return
    from pyspark_kafkalog.cli.load_run import spark_log, spark_session
    from pyspark_kafkalog.loads.compaction import compact as compact_files

    typer.echo("starting Spark", err=True)
    with spark_log() as log_fd:
        spark = spark_session(master, log_fd)
        try:
            for path, _, _ in small:
                commit = compact_files(spark, path, offsets, target_bytes=target)
                if commit is not None:
                    (new,) = commit.outputs
                    typer.echo(f"commit {commit.number}: {counted(len(new.files), 'file')} in {new.place}")
        finally:
            spark.stop()


def _small(ledger: Ledger, to: str | None, target: int) -> list[tuple[str, int, int]]:
    """Path, files and bytes of what would be put together."""
    from pyspark_kafkalog.ledger.in_effect import live_outputs
    from pyspark_kafkalog.loads.compaction import small_outputs
    from pyspark_kafkalog.loads.output_files import read_claim

    lineage = ledger.lineage()
    claim = None if to is None else read_claim(to)
    if to is not None and (claim is None or claim.load != ledger.name):
        raise typer.BadParameter(f"load {ledger.name!r} has no table at {to}", param_hint="--to")
    only = None if claim is None else claim.path
    found = []
    for path in sorted({out.path for _, out in live_outputs(lineage, only)}):
        files = [file for _, out in small_outputs(live_outputs(lineage, path), target) for file in out.files]
        if files:
            found.append((path, len(files), sum(file.bytes for file in files)))
    return found


_UNITS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,6})\s*([KMG]B)", text.strip().upper())
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"{text!r} is not a size, such as 128MB or 1GB", param_hint="--target-size")
    return int(found[1]) * _UNITS[found[2]]
