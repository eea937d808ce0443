"""The manual of the writer's options: what `sink_options` accepts, and what docs/datasource.md shows."""

from __future__ import annotations

from pyspark_kafkalog.datasource.option_table import Option

SINK_OPTIONS = (
    Option("kafka.bootstrap.servers", "required", "Brokers to begin with, `host:port,host:port`."),
    Option(
        "topic", "", "Where every row goes; beats the column `topic`. Required where there is no such column."
    ),
    Option(
        "includeHeaders",
        "true",
        "`false` leaves out the column `headers`, which Spark's own sink writes whatever the option says.",
    ),
    Option(
        "includeTimestamp",
        "false",
        "Send the column `timestamp` as the record's time; without it the time of the write is sent.",
    ),
    Option(
        "transactional.id.prefix",
        "",
        "Write in [transactions](#exactly-once): each task in one named `<prefix>-<task>`, committed once "
        "all tasks have succeeded. For this query alone; letters, digits, `.`, `_`, `-`.",
    ),
    Option(
        "transactional.write.id",
        "",
        "Name of this write, with the prefix: a write that is run again under its name adds nothing to what "
        "was committed. Streams have the numbers of their batches instead.",
        use="batch",
    ),
    Option("checkpointLocation", "", "Spark's own, of every streaming query.", use="stream"),
    Option("queryName", "", "Spark's own.", use="stream"),
)
"""Every ``kafka.*`` property of the producer beside these is passed on: docs/configuration.md."""
