"""Kafka to DuckDB, without Spark: real events into the bundled broker, and out of it as Arrow, in SQL.

Every flight that left New York's airports in December 2013 becomes a message. DuckDB reads the topic while it
computes: one record batch at a time is in memory, never the topic. What it finds is compared with what was
counted while producing.
"""

from __future__ import annotations

import sys
import time

import duckdb
from flight_events import DECEMBER, PARTITIONS, TOPIC, Source, produce
from telling import console, say, step, verdict

import kafkalog_broker
import pyspark_kafkalog as kafkalog

DELAYS = """
    SELECT decode(key) AS carrier,
           count(*) AS flights,
           avg((decode(value) ->> 'dep_delay')::INT) AS minutes_late
    FROM events GROUP BY carrier ORDER BY minutes_late DESC
"""


def main() -> int:
    started = time.monotonic()
    with step("starting the broker, in a process of its own"):
        server = kafkalog_broker.start_broker()
    with server:
        servers = server.bootstrap_servers
        with step("producing the flights of December"):
            kafkalog.create_topics(servers, [kafkalog.NewTopic(TOPIC, partitions=PARTITIONS)])
            source = produce(servers, DECEMBER, console)
            say(f"{source.events:,} events acknowledged")
        different = run(servers, source)
    return verdict(different, started)


def run(servers: str, source: Source) -> list[str]:
    """What was not found as it was produced."""
    with step("delays per carrier, from the topic"):
        with kafkalog.read_arrow(servers, TOPIC, columns=["key", "value"]) as events:
            rows = duckdb.from_arrow(events).query("events", DELAYS).fetchall()
        for carrier, flights, minutes_late in rows:
            say(f"{carrier}: {flights:6,} flights, {minutes_late:5.1f} minutes late")
    found = {carrier: flights for carrier, flights, _ in rows}
    return [] if found == source.per_carrier else ["flights per carrier"]


if __name__ == "__main__":
    sys.exit(main())
