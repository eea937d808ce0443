"""The table of goals in docs/benchmarks.md, computed from the tables in benchmarks/results.

A line of the table stands for one or more measured rows that ask the same question of the same peer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.page import MARKER

BEGIN = "<!-- Written by `python -m benchmarks` from benchmarks/results: -->"
END = "<!-- Written by hand from here on. -->"


class Line(NamedTuple):
    """A line of the table. ``rows`` is searched in a row's question and note; empty takes all that are left.

    A row belongs to the first line of its module that matches.
    """

    module: str
    question: str
    peer: str
    rows: str = ""


LIMIT = "limit we set"
RATE = "rate we want"
LOOP = "bare loop"
KAFKA = "Apache Kafka 4.1.1"
CONNECTOR = "Spark's connector"
READY = "ready-made Arrow batches"

LINES = (
    Line("decode", "Decode to Arrow: v2, 100 B, compiled", "aiokafka (C)", r"v2 .* numba .*aiokafka"),
    Line("decode", "Decode: v2, 100 B, compiled", "kafka-python", r"v2 .* numba .*kafka-python"),
    Line("decode", "Decode: v2, 100 B, plain Python", "kafka-python", r"v2 .* plain .*kafka-python"),
    Line("decode", "Decode: v0 and v1, 100 B, compiled", "aiokafka (C)", r"v[01] .*aiokafka"),
    Line("decode", "Decode: 0.7, 100 B, compiled", "our plain Python", r"0\.7 .*own, plain"),
    Line("decode", "Decode: 0.7, 100 B, compiled", "our v2 decoder", r"0\.7 .*own v2"),
    Line("pipeline", "Client: broker to record batch, 100 B", "confluent-kafka", r"batch, 100 B"),
    Line("pipeline", "Client: broker to record batch, 1024 B", "confluent-kafka", r"batch, 1024 B"),
    Line("pipeline", "`Producer.send`, 100 B, warm clients", "confluent-kafka", r"^send"),
    Line("read_arrow", "`read_arrow`, 100 B", "confluent-kafka"),
    Line("client_tls", "Client: receive over TLS, 64 KiB to 8 MiB", LOOP),
    Line("broker", "Broker: fetch, 1 MiB", LOOP, r"^fetch"),
    Line("broker", "Broker: produce, 64 KiB", LOOP, r"^produce, 64"),
    Line("broker", "Broker: produce, 1 MiB", LOOP, r"^produce, 1024"),
    Line("broker", "Broker: librdkafka produces 100 B", "its mock broker", r"100 B messages"),
    Line("broker", "Broker: librdkafka produces 1024 B", "its mock broker", r"1024 B messages"),
    Line("broker", "Broker: latency of a 100 B produce", "bare echo", r"bare echo"),
    Line("broker", "Broker: latency with 500 idle connections", "without them", r"idle"),
    Line("broker", "Broker: memory while serving 10 GiB", LIMIT, r"memory"),
    Line("broker", "Broker: start with 1,000 partitions", LIMIT, r"^start"),
    Line("broker_tls", "Broker, TLS: fetch, 1 MiB", LOOP, r"^fetch"),
    Line("broker_tls", "Broker, TLS: start; first answer, with SCRAM", LIMIT),
    Line("broker_and_kafka", "librdkafka produces, acks=all", KAFKA, r"1 partition, acks=all"),
    Line("broker_and_kafka", "librdkafka produces, lz4", KAFKA, r"lz4"),
    Line("broker_and_kafka", "librdkafka produces, acks=1, uncompressed", KAFKA, r"produce,"),
    Line("broker_and_kafka", "One record a request, 1 and 10 clients", KAFKA, r"a request, "),
    Line("broker_and_kafka", "librdkafka consumes, 1 and 100 partitions", KAFKA, r"consume, "),
    Line("broker_and_kafka", "Kafka's performance tools", KAFKA, r"perf-test"),
    Line("broker_and_kafka", "Broker start", KAFKA, r"^start"),
    Line("broker_and_kafka", "Broker memory after these tools", KAFKA, r"^memory"),
    Line("transactions", "Transactions, 20 producers", RATE),
    Line("cleaner", "Log cleaner, 100 and 1000 B", RATE, r"^cleaning"),
    Line("cleaner", "Log cleaner: others' latency meanwhile", LIMIT, r"latency"),
    Line("cleaner", "Start: load a million commits", LIMIT, r"commits"),
    Line("fairness", "Latency beside a costly client, median", LIMIT, r": median"),
    Line("fairness", "Latency beside a costly client, worst", LIMIT, r": worst"),
    Line("partitions", "10,000 partitions: create, fetch, stop, start", LIMIT),
    Line("many_partitions", "`read_arrow` of 2,000 partitions", "confluent-kafka", r"^read_arrow"),
    Line("many_partitions", "Broker: fetches of 10,000 idle partitions", "full fetches", r"idle"),
    Line("groups", "Groups: processor, rebalance", LIMIT),
    Line("broker07", "Kafka 0.7: fetch, 1 MiB", LOOP),
    Line("old_fetch", "Kafka 0.8 to 0.10: fetch, 1 MiB", "our v2 fetch"),
    Line("spark_read", "Spark read, 100 and 1000 B, 1 and 2 tasks", READY),
    Line("spark_connector", "Spark read, all sizes, codecs and batches", READY, r"peer: ready-made"),
    Line("spark_connector", "Spark read, 100 B, uncompressed and 3 codecs", CONNECTOR, r"Read 20 M"),
    Line("spark_connector", "Spark read, 1000 B, uncompressed", CONNECTOR, r"Read 5 M .* none"),
    Line("spark_connector", "Spark read, 1000 B, 3 codecs", CONNECTOR, r"Read 5 M"),
    Line("spark_connector", "Spark read, 100 B, 1 to 8333 records a batch", CONNECTOR, r"^100 B"),
    Line("spark_connector", "Spark read, 1000 B, 1 to 980 a batch", CONNECTOR, r"^1000 B"),
    Line("spark_connector", "Spark read, 10 kB, 1 to 99 a batch", CONNECTOR, r"^10000 B"),
    Line("spark_connector", "Spark read, 200 small partitions", CONNECTOR, r"^200 partitions"),
    Line("spark_connector", "Spark read, TLS, from Apache Kafka and bundled broker", CONNECTOR, r"^TLS, "),
    Line("spark_connector", "Spark: first row, our daemon", CONNECTOR, r"our daemon.*peer: Spark"),
    Line("spark_connector", "Spark: first row, Spark's daemon", CONNECTOR, r"own daemon.*peer: Spark"),
    Line("spark_connector", "Spark: first row, either daemon", "a Python source of one row", r"^First row"),
    Line("spark_connector", "Spark: two columns instead of all", "all columns", r"^columns"),
    Line("spark_connector", "Spark stream: a trigger, 0.1 s more allowed", CONNECTOR, r"a trigger,"),
    Line("spark_connector", "Spark stream: sustained", CONNECTOR, r"sustained"),
    Line("spark_connector", "Spark: to Parquet, without the write's time", CONNECTOR, r"without the write"),
    Line("spark_connector", "Load by tasks: to Parquet, 100 B", CONNECTOR, r"^load of .* 100 B"),
    Line("spark_connector", "Load by tasks: to Parquet, 1000 B", CONNECTOR, r"^load of .* 1000 B"),
    Line("spark_connector", "Spark: write 2 M rows to a topic", CONNECTOR, r"^Write"),
    Line("memory", "Worker's memory over 5 GiB", "rest of the read"),
    Line("direct_loads", "Load by tasks to Parquet", "its read and its write alone", r"alone .*sum of"),
    Line("direct_loads", "Load by tasks: to Delta, to Iceberg", "to Parquet", r"peer: Parquet"),
    Line("direct_loads", "Load by tasks to S3", "obstore's upload of its files", r"peer: obstore"),
    Line("direct_loads", "Load by tasks: start to published table", LIMIT, r"start of a process"),
    Line("direct_loads", "Load by tasks: memory of a task", LIMIT, r"most memory"),
    Line("scale", "Driver of a load of 1,000 to 100,000 partitions", LIMIT),
    Line("loads", "Load: its whole time", "its waits for the ledger", r"ledger: "),
    Line("loads", "Load: next plan after 10,000 commits, disk", "after 10", r"peer: 10 commits"),
    Line("loads", "Load: next plan after 10,000 commits, store", LIMIT, r"in a store"),
)  # fmt: skip


class Goal(NamedTuple):
    """A measured row that has a goal, with its figures as the results file has them."""

    question: str
    ratio: str
    goal: str
    met: bool
    note: str


def goals_of(results: str) -> list[Goal]:
    """The rows with a goal in the measured part of a results file."""
    measured = results.partition(MARKER)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in measured.splitlines()
        if line.startswith("| ")
    ]
    return [
        Goal(row[0], row[4], row[5][3:], row[6] == "yes", row[7]) for row in rows if row[5].startswith(">= ")
    ]


def lines_with(module: str, goals: Sequence[Goal]) -> list[tuple[Line, list[Goal]]]:
    """The lines of ``module``, each with its rows; a row that no line takes is a `ValueError`."""
    taken: list[tuple[Line, list[Goal]]] = [(line, []) for line in LINES if line.module == module]
    for goal in goals:
        text = f"{goal.question} | {goal.note}"
        rows = next((rows for line, rows in taken if re.search(line.rows, text)), None)
        if rows is None:
            raise ValueError(f"{module}: no line of benchmarks/goals.py takes the row {text!r}")
        rows.append(goal)
    return taken


def table(results: Callable[[str], str]) -> str:
    """The table of all lines; ``results`` gives the text of a module's results file."""
    lines = ["| Question | Peer | Ratio | Goal | Reached |", "|" + " --- |" * 5]
    for module in dict.fromkeys(line.module for line in LINES):
        for line, goals in lines_with(module, goals_of(results(module))):
            if not goals:
                raise ValueError(f"{module}: no row for the line {line.question!r}")
            ratio = _range([goal.ratio for goal in goals])
            wanted = _range([f"{float(goal.goal):.3g}" for goal in goals])
            question = f"[{line.question}](../benchmarks/results/{module}.md)"
            lines.append(f"| {question} | {line.peer} | {ratio} | {wanted} | {_reached(goals)} |")
    return "\n".join(lines)


def renewed_page(page: str, results: Callable[[str], str]) -> str:
    """docs/benchmarks.md with its table computed again."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{rest.partition(END)[2]}"


def _range(figures: Sequence[str]) -> str:
    low, high = min(figures, key=float), max(figures, key=float)
    return low if low == high else f"{low} to {high}"


def _reached(goals: Sequence[Goal]) -> str:
    met = sum(goal.met for goal in goals)
    text = ("yes" if met else "no") if len(goals) == 1 else f"{met} of {len(goals)}"
    return text if met == len(goals) else f"**{text}**"
