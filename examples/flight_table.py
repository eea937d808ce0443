"""What becomes of the flights in Spark: delays per carrier, and whether all of them are there."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flight_events import Source
from rich.table import Table
from telling import console, say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT = "carrier string, origin string, dest string, dep_delay int, arr_delay int, time_hour string"


def print_first(values: Iterable[bytes]) -> None:
    """What a look at the messages shows, without Spark: flights and delays per airport."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    flights: Counter[str] = Counter()
    for value in values:
        flight = json.loads(value)
        flights[flight["origin"]] += 1
        if flight["dep_delay"] is not None:
            found[flight["origin"]].append(flight["dep_delay"])
    table = Table("airport", title="New York departures in January 2013")
    for heading in ("flights", "departure, min late", "over an hour late", "never left"):
        table.add_column(heading, justify="right")
    for airport, count in flights.most_common():
        delays = found[airport]
        table.add_row(
            airport,
            f"{count:,}",
            f"{sum(delays) / len(delays):.1f}",
            f"{sum(delay > 60 for delay in delays) / len(delays):.1%}",
            f"{1 - len(delays) / count:.1%}",
        )
    console.print(table)


def print_delays(loaded: DataFrame) -> None:
    from pyspark.sql import functions as f

    event = f.from_json(f.col("value").cast("string"), EVENT)
    delays = (
        loaded.select(event.alias("event"))
        .groupBy("event.carrier")
        .agg(
            f.count("*").alias("flights"),
            f.avg("event.dep_delay").alias("departure"),
            f.avg("event.arr_delay").alias("arrival"),
            f.avg((f.col("event.arr_delay") > 15).cast("int")).alias("late"),
            f.avg(f.col("event.arr_delay").isNull().cast("int")).alias("never"),
        )
        .orderBy(f.desc("arrival"))
    )
    table = Table("carrier", title="New York departures, January to November 2013: delays per carrier")
    for heading in ("flights", "departure, min", "arrival, min", "over 15 min late", "never arrived"):
        table.add_column(heading, justify="right")
    for row in delays.collect():
        table.add_row(
            row.carrier,
            f"{row.flights:,}",
            f"{row.departure:.1f}",
            f"{row.arrival:.1f}",
            f"{row.late:.1%}",
            f"{row.never:.1%}",
        )
    console.print(table)


def compare(
    loaded: DataFrame,
    source: Source,
    *,
    carrier: str = "string(key)",
    place: Sequence[str] = ("partition", "offset"),
) -> list[str]:
    """Hold what Spark has against what was sent; returns what is different.

    ``carrier`` is the expression that finds a row's; no two rows have the same values in ``place``.
    """
    from pyspark.sql import functions as f

    per_carrier = loaded.groupBy(f.expr(carrier).alias("carrier")).agg(
        f.count("*").alias("n"),
        f.sum(f.crc32("value")).alias("checksum"),
        f.count_distinct(*place).alias("places"),
    )
    rows = per_carrier.collect()
    events = sum(row.n for row in rows)
    compared = {
        "events": (source.events, events),
        # A carrier has one partition, and a place one carrier: none is counted under two.
        f"distinct ({', '.join(place)})": (source.events, sum(row.places for row in rows)),
        "sum of CRC-32 of the values": (source.checksum, sum(row.checksum for row in rows)),
        "events per carrier": (dict(source.per_carrier), {row.carrier: row.n for row in rows}),
    }
    different = [what for what, (sent, got) in compared.items() if sent != got]
    say(
        f"{source.events:,} sent, {events:,} loaded; {', '.join(compared)}: "
        + (f"[bold red]DIFFERENT: {', '.join(different)}[/]" if different else "the same")
    )
    return different
