"""``kafkalog history``, ``verify``, ``gc``, ``rewind`` and ``compact``: the ledgers of loads.

Only ``compact`` can start Spark, and commands import only what they need, so that they start fast.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_kafkalog.cli.arguments import (
    DEFAULT_SERVER,
    AsJson,
    ClusterCommands,
    Servers,
    examples,
    offsets_in_file,
    parse_time,
    quantity,
)
from pyspark_kafkalog.cli.housekeeping import KEPT_FOR, collect_garbage, compact_tables
from pyspark_kafkalog.cli.load import Name, Offsets, source_options, started_spark, unit_of
from pyspark_kafkalog.cli.terminal_output import counted, progress, show, size, words
from pyspark_kafkalog.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark_kafkalog.ledger.commit import Commit, LoadOutput
    from pyspark_kafkalog.ledger.ledger import Ledger
    from pyspark_kafkalog.ledger.plan import Plan
    from pyspark_kafkalog.ledger.rewind import Rewind
    from pyspark_kafkalog.types import TopicPartition


ledgers = ClusterCommands()


@ledgers.command(
    epilog=examples(
        "history flights --offsets /lake/_offsets --limit 5",
        "history flights --offsets /lake/_offsets --json",
    )
)
def history(
    name: Name,
    offsets: Offsets,
    limit: Annotated[int | None, typer.Option(min=1, help="Show only this many, the newest.")] = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="Show one row per partition.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the commits of a load, oldest first.

    Paths below the current directory are shown relative to it, except with --json.
    """
    ledger = open_ledger(name, offsets)
    if partitions:
        _show_partitions(ledger, limit, as_json=as_json)
        return
    from pyspark_kafkalog.ledger.records import entry

    in_effect = {commit.number for commit in ledger.lineage()}
    shown = ledger.history()[-limit if limit else 0 :]
    if as_json:
        rows = [
            {
                **asdict(commit),
                "positions": [entry(p) for p in commit.positions],
                "outputs": [_output_row(out) for out in commit.outputs],
                "in_effect": commit.number in in_effect,
            }
            for commit in shown
        ]
    else:
        rows = [_history_row(commit, commit.number in in_effect) for commit in shown]
    show(rows, _columns(_HISTORY, rows), as_json=as_json)
    pending = ledger.pending()
    if pending is not None:
        say_pending(pending)


_UNSET = (("replaces", ()), ("wrote", None))


def _output_row(output: LoadOutput) -> dict[str, object]:
    return {name: value for name, value in asdict(output).items() if (name, value) not in _UNSET}


def say_pending(plan: Plan) -> None:
    count = counted(sum(p.end - p.start for p in plan.partitions), unit_of(plan.partitions[0].key))
    words(
        f"load {plan.number} was planned at {plan.created} and not committed: {count}. "
        "The next load reads exactly these"
    )


def _show_partitions(ledger: Ledger, limit: int | None, *, as_json: bool) -> None:
    from pyspark_kafkalog.clock import utc_text
    from pyspark_kafkalog.ledger.audit import audit_rows

    rows = audit_rows(ledger)
    shown = sorted({row.load for row in rows})[-limit if limit else 0 :]
    found: list[dict[str, object]] = [asdict(row) for row in rows if row.load in shown]
    if not as_json:
        for row in found:
            row["in effect"] = "yes" if row["in_effect"] else "rewound"
            if row["broker"] is not None:
                row["partition"] = f"{row['broker']}-{row['partition']}"
            for side in ("first", "last"):
                time_ms = row[f"{side}_timestamp_ms"]
                row[f"{side} at"] = utc_text(time_ms) if isinstance(time_ms, int) else None
    show(found, _columns(_PARTITIONS, found), as_json=as_json)


_PARTITIONS = (
    "load", "topic", "partition", "start", "end", "offsets", "records", "bytes", "first at", "last at",
    "lost", "skipped", "missing", "in effect",
)  # fmt: skip
_HISTORY = ("load", "at", "mode", "records", "bytes", "skipped", "missing", "after", "in effect", "where")
_RARE = ("skipped", "missing")


def _columns(names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> list[str]:
    return [name for name in names if name not in _RARE or any(row[name] for row in rows)]


def _history_row(commit: Commit, in_effect: bool) -> dict[str, object]:
    places = [out.place.removeprefix(f"{Path.cwd()}/") for out in commit.outputs]
    return {
        "load": commit.number,
        "at": commit.created,
        "mode": commit.mode,
        # Negative if no receipts were left.
        "records": commit.records if commit.records >= 0 else None,
        "bytes": commit.bytes if commit.bytes >= 0 else None,
        "skipped": commit.skipped,
        "missing": commit.missing,
        "after": commit.parent or "start",
        "in effect": "yes" if in_effect else "rewound",
        "where": ", ".join(places) or commit.note or None,
    }


@ledgers.command(
    epilog=examples(
        "verify flights --offsets /lake/_offsets",
        "verify flights --offsets /lake/_offsets --deep",
        "verify flights --offsets /lake/_offsets --database sqlite:////lake/db",
        "verify --store s3://bucket/offsets",
    )
)
def verify(
    name: Annotated[str | None, typer.Argument(metavar="LOAD", help="The name of the load.")] = None,
    offsets: Annotated[str | None, typer.Option(help="Directory of the ledgers (offsetsPath).")] = None,
    database: Annotated[str | None, typer.Option(help="Also check tables in this database (URL).")] = None,
    store: Annotated[str | None, typer.Option(help="Only test whether this place can hold ledgers.")] = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Read all files; compare checksums and receipts."),
    ] = False,
) -> None:
    """Check a ledger and the files of its loads, and with --database their tables. Prints what is wrong; the
    exit code is then 1. With --store test whether ledgers can be kept in a place: records are written there
    and removed.
    """
    if store is not None:
        if name or offsets or database or deep:
            raise typer.BadParameter("takes no NAME, --offsets, --database or --deep", param_hint="--store")
        _try_store(store)
        return
    if name is None or offsets is None:
        raise typer.BadParameter("give both, or --store", param_hint="NAME and --offsets")
    ledger = open_ledger(name, offsets)
    from pyspark_kafkalog.errors import LoadError
    from pyspark_kafkalog.ledger.archive import live_outputs
    from pyspark_kafkalog.loads.verification import read_outputs, verify_outputs

    findings = ledger.verify()
    commits: list[Commit] = []
    try:
        commits = ledger.lineage()
    except LoadError as e:
        findings = findings or [str(e)]
    files = [file for _, out in live_outputs(commits) for file in out.files]
    if deep:
        with progress("read", sum(file.bytes for file in files), in_bytes=True) as tell:
            findings += read_outputs(ledger, commits, tell)
    else:
        findings += verify_outputs(commits)
    if database is not None:
        from pyspark_kafkalog.loads.sql.database import database_of
        from pyspark_kafkalog.loads.sql.reconcile import audit_database

        findings += audit_database(ledger, database_of(database))
    for finding in findings:
        typer.echo(finding)
    if findings:
        words(f"{counted(len(findings), 'finding')} in {ledger.location}")
        raise typer.Exit(1)
    skipped = sum(c.skipped for c in commits)
    if skipped:
        words(f"{counted(skipped, 'offset')} were left out as corrupt (onCorruptBatch=skip)")
    typer.echo(
        f"sound: {counted(len(commits), 'commit')} in effect with "
        f"{counted(sum(max(0, c.records) for c in commits), 'record')}, "
        f"{counted(len(files), 'file')} with {counted(sum(file.rows for file in files), 'row')}"
    )


def _try_store(url: str) -> None:
    from pyspark_kafkalog.ledger.stores.locations import check_store, open_store

    store = open_store(url)
    check_store(store)
    typer.echo(f"{store.location} can keep ledgers, as far as one machine can try")


@ledgers.command(
    epilog=examples(
        "gc flights --offsets /lake/_offsets --dry-run",
        "gc flights --offsets /lake/_offsets --keep 10",
        "gc flights --offsets /lake/_offsets --older-than 12h",
        "gc flights --offsets /lake/_offsets --catalog prod",
    )
)
def gc(
    name: Name,
    offsets: Offsets,
    keep: Annotated[int, typer.Option(min=1, help="Leave this many loads, the newest, as they are.")] = 1,
    older_than: Annotated[
        str, typer.Option(help="Minimum age of removed files: 7d, 12h, 30m, 0s.")
    ] = KEPT_FOR,
    catalog: Annotated[
        str | None, typer.Option(help="Catalog of Iceberg tables, by its name in pyiceberg's configuration.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
) -> None:
    """Remove what is no longer needed: receipts and marks of committed loads, which are summed up first, and
    output files that no commit names or that `compact` replaced. In tables of Delta and Iceberg, files that
    tasks of this load wrote and no version or snapshot has.

    Plans, commits, files of rewound loads and all that belongs to a pending plan are kept.
    """
    collect_garbage(open_ledger(name, offsets), keep, older_than, catalog, dry_run=dry_run)


_SIZE_UNITS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def _bytes(text: str) -> int:
    byte_count = quantity(text.strip().upper(), _SIZE_UNITS)
    if not byte_count:
        raise typer.BadParameter(f"{text!r} is not a size, such as 128MB or 1GB", param_hint="--target-size")
    return byte_count


def open_ledger(name: str, offsets: str) -> Ledger:
    """Raises `InvalidConfig` with the known names."""
    from pyspark_kafkalog.ledger.ledger import Ledger

    ledger = Ledger.at(offsets, name)
    if not ledger.known():
        there = ledger.known_beside()
        known = f"there are {', '.join(there)}" if there else "there is none at all"
        raise InvalidConfig(f"no load is called {name!r} at {offsets}: {known}")
    return ledger


@ledgers.command(
    epilog=examples(
        "rewind flights --offsets /lake/_offsets --to commit:37",
        "rewind flights --offsets /lake/_offsets --to start --yes",
        "rewind flights --offsets /lake/_offsets --to-datetime 2026-11-21T18:00:00Z -b localhost:9092",
        "rewind flights --offsets /lake/_offsets --to-offsets before.csv",
    )
)
def rewind(
    name: Name,
    offsets: Offsets,
    to: Annotated[str | None, typer.Option(help="commit:37 to continue after load 37, or start.")] = None,
    to_datetime: Annotated[str | None, typer.Option(help="To this time: ISO 8601, by default UTC.")] = None,
    to_offsets: Annotated[
        Path | None, typer.Option(help="To the offsets in a CSV file: topic,partition,offset.")
    ] = None,
    server: Servers = DEFAULT_SERVER,
    option: Annotated[
        list[str] | None,
        typer.Option(help="For --to-datetime: data source option, name=value; may be repeated."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Make the next load start at an earlier position, so that later records are read again.

    The history is kept. An offset or time within a load that wrote files or tables rewinds to the start of
    that load, so that no record is missing or there twice. Only --to-datetime connects to the cluster.
    """
    if sum(way is not None for way in (to, to_datetime, to_offsets)) != 1:
        raise InvalidConfig("give one of --to, --to-datetime and --to-offsets")
    from pyspark_kafkalog.ledger.rewind import rewinding, rewinding_to_commit

    ledger = open_ledger(name, offsets)
    with ledger.hold("rewind"):
        if ledger.head() is None:
            raise InvalidConfig(
                f"{ledger.location}: nothing was committed yet, so there is nothing to rewind"
            )
        if to is not None:
            found, note = rewinding_to_commit(ledger, _target(to)), ""
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


def _changes_nothing(ledger: Ledger, found: Rewind, *, gives_up_plan: bool) -> bool:
    """Whether positions and loads in effect stay; rewinding to a commit may still drop a plan."""
    from pyspark_kafkalog.ledger.records import plan_name

    if gives_up_plan and ledger.store.exists(plan_name(found.newest + 1)):
        return False
    lineage = ledger.lineage()
    undone = [c for c in lineage if c.number > found.parent]
    in_effect = found.parent in (0, *(c.number for c in lineage))
    return (
        in_effect
        and found.positions == lineage[-1].positions
        and not any(c.is_load or c.outputs for c in undone)
    )


def _show(ledger: Ledger, found: Rewind) -> None:
    from pyspark_kafkalog.ledger.rewind import deleted_since

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
    """Offsets of a time in the loaded partitions that still exist; unchanged without so late a record."""
    time_ms = parse_time(text.strip())
    if time_ms is None:
        raise typer.BadParameter(
            f"{text!r} is not a time since 1970, such as 2026-11-21T18:00:00Z", param_hint="--to-datetime"
        )
    from pyspark_kafkalog.datasource.options.read_options import parse_batch_options
    from pyspark_kafkalog.datasource.reading.kafka import opened_cluster

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


def _read_again(ledger: Ledger, found: Rewind) -> Mapping[TopicPartition, tuple[int | None, int]]:
    starts = {p.key: p.next for p in found.positions}
    now = {p.key: p.next for p in ledger.commit_at(found.newest).positions}
    return {tp: (starts.get(tp), end) for tp, end in now.items() if starts.get(tp, -1) < end}


@ledgers.command(
    epilog=examples(
        "compact flights --offsets /lake/_offsets --dry-run",
        "compact flights --offsets /lake/_offsets --to /lake/flights --target-size 256MB",
    )
)
def compact(
    name: Name,
    offsets: Offsets,
    to: Annotated[str | None, typer.Option(help="Only files in this directory.")] = None,
    target_size: Annotated[str, typer.Option(help="Size of the new files: 64MB, 128MB, 1GB.")] = "128MB",
    master: Annotated[
        str | None,
        typer.Option(help="Run in Spark with this master, 'local[*]' for example; else in processes here."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be merged.")] = False,
) -> None:
    """Merge the small files of many loads into a few large ones, with one commit per directory.

    Rows and their load numbers stay the same. The replaced files stay until `gc` removes them. ORC needs
    --master.
    """
    ledger, target = open_ledger(name, offsets), _bytes(target_size)
    small = _small(ledger, to, target)
    for path, files, bytes_ in small:
        typer.echo(f"{path}: {counted(files, 'small file')} with {size(bytes_)}")
    if not small:
        typer.echo("nothing to compact")
    if dry_run or not small:
        return
    with nullcontext() if master is None else started_spark(master) as spark:
        compact_tables(spark, [path for path, _, _ in small], offsets, target)


def _small(ledger: Ledger, to: str | None, target: int) -> list[tuple[str, int, int]]:
    from pyspark_kafkalog.ledger.archive import live_outputs
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
