"""``kafkalog load``, ``history``, ``verify`` and ``gc``: loads that resume, and their ledgers.

Only ``load`` starts Spark, and only the commands themselves import what they need: asking a ledger is quick.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_kafkalog.cli.connecting import (
    DEFAULT_SERVER,
    AsJson,
    Servers,
    command_properties,
    pairs,
    speaks_07,
)
from pyspark_kafkalog.cli.terminal_output import counted, show, size
from pyspark_kafkalog.types import NO_BROKER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark_kafkalog.ledger.commit import Commit, Output
    from pyspark_kafkalog.ledger.ledger import Ledger
    from pyspark_kafkalog.ledger.plan import Plan
    from pyspark_kafkalog.types import TopicPartition

Name = Annotated[str, typer.Argument(metavar="LOAD", help="The name of the load.")]
Offsets = Annotated[str, typer.Option("--offsets", help="Directory of the ledgers (offsetsPath).")]


def words(text: str) -> None:
    """Tell the user something that is not the command's result."""
    typer.echo(text, err=True)


LOAD_EPILOG = """\
Examples:

kafkalog load flights --offsets /lake/_offsets --topic flights --to /lake/flights

kafkalog load flights --offsets /lake/_offsets --topic flights --dry-run

kafkalog load days --offsets /lake/_offsets --topic flights --to /lake/days --partition-by-time timestamp

kafkalog load flights --offsets /lake/_offsets --topic flights --to sqlite:////lake/db --table flights

kafkalog load all --offsets /lake/_offsets --subscribe-pattern 'fl.*' --to /lake/all --option minPartitions=8

kafkalog load old --offsets /lake --topic old --to /lake/old --option protocol=0.7 --option zk.connect=zk:2181
"""
HISTORY_EPILOG = """\
Examples:

kafkalog history flights --offsets /lake/_offsets --limit 5

kafkalog history flights --offsets /lake/_offsets --json
"""
GC_EPILOG = """\
Examples:

kafkalog gc flights --offsets /lake/_offsets --dry-run

kafkalog gc flights --offsets /lake/_offsets --keep 10

kafkalog gc flights --offsets /lake/_offsets --older-than 12h
"""
VERIFY_EPILOG = """\
Examples:

kafkalog verify flights --offsets /lake/_offsets

kafkalog verify flights --offsets /lake/_offsets --database sqlite:////lake/db

kafkalog verify --store s3://bucket/offsets
"""


def register(app: typer.Typer) -> None:
    """Add the commands to ``kafkalog``."""
    app.command("load", epilog=LOAD_EPILOG)(load)
    app.command("history", epilog=HISTORY_EPILOG)(history)
    app.command("verify", epilog=VERIFY_EPILOG)(verify)
    app.command("gc", epilog=GC_EPILOG)(gc)


def load(
    name: Name,
    offsets: Offsets,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Directory for the files, or a database's URL; not with --dry-run."),
    ] = None,
    table: Annotated[str | None, typer.Option(help="Table, if --to is a database.")] = None,
    topics: Annotated[list[str] | None, typer.Option("--topic", help="Topic; may be repeated.")] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--subscribe-pattern", help="Instead: regular expression for whole topic names."),
    ] = None,
    server: Servers = DEFAULT_SERVER,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Data source option, name=value; may be repeated."),
    ] = None,
    on_pending: Annotated[
        str,
        typer.Option("--on-pending", help="What to do with an uncommitted plan: replay, fail or discard."),
    ] = "replay",
    file_format: Annotated[str, typer.Option("--format", help="File format: parquet or orc.")] = "parquet",
    by_time: Annotated[
        str | None,
        typer.Option(
            "--partition-by-time",
            help="Write a directory for each day or hour of this column, such as timestamp.",
        ),
    ] = None,
    grain: Annotated[str, typer.Option(help="With --partition-by-time: day or hour, in UTC.")] = "day",
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be read.")] = False,
) -> None:
    """Load new records into Parquet or ORC files or a database table, exactly once."""
    options = source_options(server, topics or [], pattern, option or [])
    if dry_run:
        from pyspark_kafkalog.cli.load_run import propose

        show_plan(propose(name, offsets, on_pending, options), name)
        return
    if to is None:
        raise typer.BadParameter("say where the rows go", param_hint="--to")
    from pyspark_kafkalog.cli.load_run import run, target_of

    target = target_of(to, table, file_format, by_time, grain)
    run(name, offsets, target, on_pending, options, master)


def source_options(
    server: str, topics: Sequence[str], pattern: str | None, given: Sequence[str]
) -> dict[str, str]:
    """The options of the source for these topics or this pattern, with those ``given`` as name=value."""
    if bool(topics) == (pattern is not None):
        raise typer.BadParameter("give --topic, once or more, or --subscribe-pattern", param_hint="--topic")
    what = {"subscribe": ",".join(topics)} if topics else {"subscribePattern": str(pattern)}
    file = command_properties().items()
    shared = {f"kafka.{key}": value for key, value in file if key != "bootstrap.servers"}
    options = {**shared, **what, **dict(pairs(given, "--option"))}
    if not speaks_07(options):
        options.setdefault("kafka.bootstrap.servers", server)
    if not any(name.lower() == "fetchoffset.numretries" for name in options):
        # Somebody waits: one request.timeout.ms, half a minute in which the client tries again by itself.
        options["fetchOffset.numRetries"] = "0"
    return options


def show_plan(plan: Plan | None, name: str) -> None:
    """Print the ranges of a plan; None is a plan of nothing."""
    if plan is None:
        typer.echo(f"{name}: nothing new")
        return
    unit = unit_of(plan.partitions[0].key)
    rows = [
        {
            **asdict(p),
            "partition": p.key.number,
            f"{unit}s": p.end - p.start,
            "why": p.reason or "goes on",
        }
        for p in plan.partitions
    ]
    show(rows, ("topic", "partition", "start", "end", f"{unit}s", "why"), as_json=False)
    total = counted(sum(p.end - p.start for p in plan.partitions), unit)
    tasks = counted(len(plan.ranges), "task")
    typer.echo(f"{name}: load {plan.number} would read {total} in {tasks}")


def unit_of(partition: TopicPartition) -> str:
    """What offsets count: those of 0.7, which are of a broker's partition, are positions in bytes."""
    return "offset" if partition.broker == NO_BROKER else "byte"


def history(
    name: Name,
    offsets: Offsets,
    limit: Annotated[int | None, typer.Option(min=1, help="Show only this many, the newest.")] = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Show what each load read, one row per partition.")
    ] = False,
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


def _output_row(output: Output) -> dict[str, object]:
    """Its fields; only those of compactions have what they replaced."""
    return {name: value for name, value in asdict(output).items() if name != "replaces" or value}


def say_pending(plan: Plan) -> None:
    """Tell the user of a plan that was left without a commit."""
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
    """The names of columns but for those that few loads have something to say in, and none of these does."""
    return [name for name in names if name not in _RARE or any(row[name] for row in rows)]


def _history_row(commit: Commit, in_effect: bool) -> dict[str, object]:
    return {
        "load": commit.number,
        "at": commit.created,
        "mode": commit.mode,
        # Negative where no receipts were left.
        "records": commit.records if commit.records >= 0 else None,
        "bytes": commit.bytes if commit.bytes >= 0 else None,
        "skipped": commit.skipped,
        "missing": commit.missing,
        "after": commit.parent or "start",
        "in effect": "yes" if in_effect else "rewound",
        "where": ", ".join(_from_here(out.place) for out in commit.outputs) or commit.note or None,
    }


def _from_here(place: str) -> str:
    """A path below the current directory as one from there, so that tables stay narrow."""
    return place.removeprefix(f"{Path.cwd()}/")


def verify(
    name: Annotated[str | None, typer.Argument(metavar="LOAD", help="The name of the load.")] = None,
    offsets: Annotated[
        str | None, typer.Option("--offsets", help="Directory of the ledgers (offsetsPath).")
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="URL of a database that the load wrote to: check it, too.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Instead: path or URL to test as a place for ledgers."),
    ] = None,
) -> None:
    """Check a ledger and the files of its loads, and with --database their tables. Prints what is wrong; the
    exit code is then 1. With --store test whether ledgers can be kept in a place: records are written there
    and removed.
    """
    if store is not None:
        if name or offsets or database:
            raise typer.BadParameter("takes no NAME, --offsets or --database", param_hint="--store")
        _try_store(store)
        return
    if name is None or offsets is None:
        raise typer.BadParameter("give both, or --store", param_hint="NAME and --offsets")
    ledger = open_ledger(name, offsets)
    from pyspark_kafkalog.errors import LoadError
    from pyspark_kafkalog.ledger.in_effect import live_outputs
    from pyspark_kafkalog.loads.output_files import verify_outputs

    findings = ledger.verify()
    commits: list[Commit] = []
    try:
        commits = ledger.lineage()
    except LoadError as e:
        findings = findings or [str(e)]
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
    files = [file for _, out in live_outputs(commits) for file in out.files]
    skipped = sum(c.skipped for c in commits)
    if skipped:
        words(f"{counted(skipped, 'offset')} were left out as corrupt (onCorruptBatch=skip)")
    typer.echo(
        f"sound: {counted(len(commits), 'commit')} in effect with "
        f"{counted(sum(max(0, c.records) for c in commits), 'record')}, "
        f"{counted(len(files), 'file')} with {counted(sum(file.rows for file in files), 'row')}"
    )


def _try_store(url: str) -> None:
    from pyspark_kafkalog.stores.locations import open_store
    from pyspark_kafkalog.stores.store_check import check_store

    store = open_store(url)
    check_store(store)
    typer.echo(f"{store.location} can keep ledgers, as far as one machine can try")


def gc(
    name: Name,
    offsets: Offsets,
    keep: Annotated[int, typer.Option(min=1, help="Leave this many loads, the newest, as they are.")] = 1,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Remove output files only from this age on: 7d, 12h, 30m, 0s.")
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
) -> None:
    """Remove what is no longer needed: receipts and marks of committed loads, which are summed up first, and
    output files that no commit names or that `compact` replaced.

    Plans, commits, files of rewound loads and all that belongs to a pending plan are kept.
    """
    ledger = open_ledger(name, offsets)
    from contextlib import nullcontext

    from pyspark_kafkalog.clock import SYSTEM_CLOCK
    from pyspark_kafkalog.ledger.cleaning import clean
    from pyspark_kafkalog.loads.output_cleaning import removable_files, remove_files

    now_ms, age_ms = SYSTEM_CLOCK.time_ms(), _age_ms(older_than)
    with nullcontext() if dry_run else ledger.hold("gc"):
        found = clean(ledger, keep, dry_run=dry_run)
        tables = removable_files(ledger, now_ms - age_ms)
        if not dry_run:
            for table in tables:
                remove_files(ledger, table, now_ms)
    for one in found:
        if one.kept:
            words(f"load {one.number} keeps its receipts: {one.kept}")
    gone = [one for one in found if not one.kept]
    receipts, marks = sum(one.receipts for one in gone), sum(one.marks for one in gone)
    done = "would remove" if dry_run else "removed"
    typer.echo(
        f"{done} {counted(receipts, 'receipt')} and {counted(marks, 'mark')} of {counted(len(gone), 'load')}"
    )
    for table in tables:
        if table.refused:
            words(f"{table.location}: nothing is removed there: {table.refused}")
        if count := len(table.unlisted) + len(table.replaced):
            typer.echo(f"{done} {counted(count, 'file')} with {size(table.bytes)} from {table.location}")
        if table.young_count:
            young = counted(table.young_count, "file")
            words(f"{table.location}: {young} younger than {older_than} not removed")


_AGE_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _age_ms(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text.strip())
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is not an age; give a number and s, m, h or d: 7d, 12h", param_hint="--older-than"
        )
    return int(found[1]) * _AGE_UNITS_MS[found[2]]


def open_ledger(name: str, offsets: str) -> Ledger:
    """The ledger of a load that exists.

    Raises:
        InvalidConfig: there is none of that name; the text says which there are.
    """
    from pyspark_kafkalog.errors import InvalidConfig
    from pyspark_kafkalog.ledger.ledger import Ledger

    ledger = Ledger.at(offsets, name)
    if not ledger.known():
        there = ledger.known_beside()
        known = f"there are {', '.join(there)}" if there else "there is none at all"
        raise InvalidConfig(f"no load is called {name!r} at {offsets}: {known}")
    return ledger
