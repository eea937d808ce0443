"""``kafkalog rewind``: the next load begins after an earlier one, at a time, or at given offsets."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_kafkalog.cli.connecting import DEFAULT_SERVER, Servers
from pyspark_kafkalog.cli.loads import Name, Offsets, holder, open_ledger, source_options, unit_of, words
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
        str | None, typer.Option("--to", help="commit:37 to go on after load 37, or start.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            help="To the first record of each partition at or after this time: ISO 8601, UTC without a zone.",
        ),
    ] = None,
    to_offsets: Annotated[
        Path | None,
        typer.Option(
            "--to-offsets", help="To the offsets in a CSV file: topic,partition,offset in each line."
        ),
    ] = None,
    server: Servers = DEFAULT_SERVER,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="With --to-datetime: an option of the source, name=value."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make the next load begin at an earlier place; what came since is read again. History stays.

    Offsets and times within a load that wrote files or tables lead to where that load began, so that no
    record is there twice or missing. Only --to-datetime asks the cluster.
    """
    if sum(way is not None for way in (to, to_datetime, to_offsets)) != 1:
        raise InvalidConfig("give one of --to, --to-datetime and --to-offsets")
    ledger = open_ledger(name, offsets)
    with ledger.hold(holder("rewind")):
        note = ""
        if to is not None:
            found = _to_commit(ledger, _target(to))
        elif to_offsets is not None:
            note = f"to the offsets in {to_offsets.name}"
            found = _to_offsets(ledger, offsets_in_file(to_offsets))
        else:
            note = f"to {to_datetime}"
            found = _to_offsets(ledger, _at(ledger, str(to_datetime), server, option or []))
        _show(ledger, found)
        if not yes:
            typer.confirm("Rewind?", abort=True)
        from pyspark_kafkalog.loads.manifest import write_manifests

        commit = ledger.rewind_to(found, uuid.uuid4().hex, note)
        write_manifests(ledger, commit)
    typer.echo(f"rewound: commit {commit.number}")


def _show(ledger: Ledger, found: Rewinding) -> None:
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
        typer.echo("  nothing: that is where it stands")
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


def _to_commit(ledger: Ledger, target: int) -> Rewinding:
    from pyspark_kafkalog.ledger.rewinding import Rewinding

    head = ledger.head()
    if head is None:
        raise InvalidConfig(f"{ledger.location}: nothing was committed yet, so there is nothing to rewind")
    if target == 0:
        return Rewinding(head.number, 0, ledger.first_starts(head.number), (), True)
    commit = ledger.commit_of(target)
    if commit is None:
        raise InvalidConfig(f"{ledger.location} has no commit {target}; the newest is {head.number}")
    return Rewinding(head.number, target, commit.positions, (), True)


def _to_offsets(ledger: Ledger, wanted: Mapping[TopicPartition, int]) -> Rewinding:
    from pyspark_kafkalog.ledger.rewinding import rewinding

    return rewinding(ledger, wanted)


def _at(ledger: Ledger, text: str, server: str, given: Sequence[str]) -> dict[TopicPartition, int]:
    """The offsets of a time in the partitions that were loaded and still exist.

    A partition without so late a record stays where it is.
    """
    time_ms = parse_time(text.strip())
    if time_ms is None:
        raise typer.BadParameter(
            f"{text!r} is not a time; give it as 2026-11-21T18:00:00Z", param_hint="--to-datetime"
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
    return {key: min(at, stored[key]) for key, at in found.items() if at >= 0}


def _read_again(ledger: Ledger, found: Rewinding) -> Mapping[TopicPartition, tuple[int | None, int]]:
    """Per partition the offsets from the next position to the newest one; None is the log's beginning."""
    starts = {p.key: p.next for p in found.positions}
    now = {p.key: p.next for p in ledger.commit_at(found.newest).positions}
    return {tp: (starts.get(tp), end) for tp, end in now.items() if starts.get(tp, -1) < end}
