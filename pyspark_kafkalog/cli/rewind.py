"""``kafkalog rewind``: the next load begins after an earlier one, at a time, or at given offsets."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_kafkalog.cli.connecting import DEFAULT_SERVER, Servers
from pyspark_kafkalog.cli.loads import Name, Offsets, open_ledger, source_options, unit_of, words
from pyspark_kafkalog.cli.positions import offsets_in_file, parse_time
from pyspark_kafkalog.cli.terminal_output import counted
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark_kafkalog.ledger.ledger import Ledger
    from pyspark_kafkalog.ledger.rewinding import Rewinding
    from pyspark_kafkalog.types import TopicPartition

REWIND_EPILOG = """\
Examples:

kafkalog rewind flights --offsets /lake/_offsets --to commit:37

kafkalog rewind flights --offsets /lake/_offsets --to start --yes

kafkalog rewind flights --offsets /lake/_offsets --to-datetime 2026-11-21T18:00:00Z -b localhost:9092

kafkalog rewind flights --offsets /lake/_offsets --to-offsets before.csv
"""


def rewind(
    name: Name,
    offsets: Offsets,
    to: Annotated[
        str | None, typer.Option("--to", help="commit:37 to continue after load 37, or start.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            help="To each partition's first record at or after this time: ISO 8601, by default UTC.",
        ),
    ] = None,
    to_offsets: Annotated[
        Path | None,
        typer.Option("--to-offsets", help="To the offsets in a CSV file with lines topic,partition,offset."),
    ] = None,
    server: Servers = DEFAULT_SERVER,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="With --to-datetime: data source option, name=value; may be repeated."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Make the next load start at an earlier position, so that later records are read again.

    The history is kept. An offset or time within a load that wrote files or tables rewinds to the start of
    that load, so that no record is missing or there twice. Only --to-datetime connects to the cluster.
    """
    if sum(way is not None for way in (to, to_datetime, to_offsets)) != 1:
        raise InvalidConfig("give one of --to, --to-datetime and --to-offsets")
    from pyspark_kafkalog.ledger.rewinding import rewinding, rewinding_to_commit

    ledger = open_ledger(name, offsets)
    with ledger.hold("rewind"):
        if ledger.head() is None:
            raise InvalidConfig(
                f"{ledger.location}: nothing was committed yet, so there is nothing to rewind"
            )
        note = ""
        if to is not None:
            found = rewinding_to_commit(ledger, _target(to))
        elif to_offsets is not None:
            note = f"to the offsets in {to_offsets.name}"
            found = rewinding(ledger, offsets_in_file(to_offsets))
        else:
            note = f"to {to_datetime}"
            found = rewinding(ledger, _at(ledger, str(to_datetime), server, option or []))
        _show(ledger, found)
        if _changes_nothing(ledger, found, gives_up_plan=to is not None):
            typer.echo("positions unchanged: nothing was committed")
            return
        if not yes:
            typer.confirm("Rewind?", abort=True)
        from pyspark_kafkalog.loads.manifest import write_manifests

        commit = ledger.rewind_to(found, uuid.uuid4().hex, note)
        write_manifests(ledger, commit)
    typer.echo(f"rewound: commit {commit.number}")


def _changes_nothing(ledger: Ledger, found: Rewinding, *, gives_up_plan: bool) -> bool:
    """Whether the rewind leads to where the ledger is; one to a commit then still gives up a pending plan."""
    from pyspark_kafkalog.ledger.records import plan_name

    pending = ledger.store.exists(plan_name(found.newest + 1))
    same = found.parent == found.newest and found.positions == ledger.commit_at(found.newest).positions
    return same and not (pending and gives_up_plan)


def _show(ledger: Ledger, found: Rewinding) -> None:
    from pyspark_kafkalog.ledger.rewinding import deleted_since

    place = f"load {found.parent}" if found.parent else "the start"
    if not found.is_exact:
        words(
            f"load {found.undone[0]} covers that place, and what it wrote is in effect as a whole or not at "
            f"all: going back to after {place}"
        )
    again = _read_again(ledger, found)
    typer.echo(f"after {place}, the next load reads again:")
    for tp, (start, end) in sorted(again.items()):
        count = "from the log's beginning" if start is None else counted(end - start, unit_of(tp))
        typer.echo(f"  {tp}\t[{'-' if start is None else start}, {end})\t{count}")
    if not again:
        typer.echo("  nothing")
    for tp, (start, end) in sorted(deleted_since(ledger, found).items()):
        words(
            f"{tp}: the log no longer has offsets [{start}, {end}): they cannot be read again, and loads "
            "that wrote them are no longer in effect"
        )
    undone = [c.number for c in ledger.lineage() if c.number > found.parent and c.is_load and c.outputs]
    if undone:
        words(
            f"no longer in effect: load {', '.join(map(str, undone))}. read_load leaves their files out, "
            "and the next load into a database removes their rows"
        )


def _target(text: str) -> int:
    kind, _, number = text.partition(":")
    if text == "start":
        return 0
    if kind != "commit" or not number.isdecimal() or int(number) == 0:
        raise typer.BadParameter(f"{text!r} is neither commit:<number> nor start", param_hint="--to")
    return int(number)


def _at(ledger: Ledger, text: str, server: str, given: Sequence[str]) -> dict[TopicPartition, int]:
    """The offsets of a time in the partitions that were loaded and still exist.

    A partition without so late a record stays where it is.
    """
    time_ms = parse_time(text.strip())
    if time_ms is None:
        raise typer.BadParameter(
            f"{text!r} is not a time since 1970, such as 2026-11-21T18:00:00Z", param_hint="--to-datetime"
        )
    from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
    from pyspark_kafkalog.datasource.reading.opening import opened_cluster

    head = ledger.head()
    stored = {} if head is None else {key: p.next for key, p in head.stored.items()}
    topics = "|".join(sorted({re.escape(key.topic) for key in stored}))
    options = parse_batch_options(source_options(server, [], topics or "-", given))
    with opened_cluster(options) as cluster:
        asked = {key: time_ms for key in cluster.leaders() if key in stored}
        found = cluster.offsets(asked)
    for key in sorted(stored):
        if key not in found:
            words(f"{key} stays where it is: it no longer exists, or these options leave it out")
        elif found[key] < 0:
            words(f"{key} stays where it is: it has no record at or after {text}")
    return {key: min(at, stored[key]) for key, at in found.items() if at >= 0}


def _read_again(ledger: Ledger, found: Rewinding) -> Mapping[TopicPartition, tuple[int | None, int]]:
    """Per partition the offsets from the next position to the newest one; None is the log's beginning."""
    starts = {p.key: p.next for p in found.positions}
    now = {p.key: p.next for p in ledger.commit_at(found.newest).positions}
    return {tp: (starts.get(tp), end) for tp, end in now.items() if starts.get(tp, -1) < end}
