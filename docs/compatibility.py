"""``docs/compatibility.md``: the APIs that the broker serves, from its registry, its handlers' docstrings and
the tables that open their files; which clients were tried with what, by the tests that try it; and what
differs from Apache Kafka on purpose.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from itertools import takewhile

from kafkalog_broker.server.dispatch import REGISTRY, Registration
from kafkalog_broker.server.handlers import NOT_SERVED
from pyspark_kafkalog.protocol.exchange import APIS, NEVER_FLEXIBLE
from tests.peers.scripted.allowed import ALLOWED

INTRODUCTION = """\
# Compatibility

What the bundled broker serves of Kafka's protocol, which clients were tried with it, and where its
answers differ from Apache Kafka's. `make docs` writes this page from the handlers, the tests and the
list of differences. The rules of the wire: [protocol.md](protocol.md).
"""

DIFFERENCES = """
## Differences from Apache Kafka

`tests/peers/scripted` sends the same requests to this broker, to Apache Kafka 3.9.1 and to 4.1.1, and
compares the answers field by field in the versions that both serve. They are the same but for this:
"""

LIBRDKAFKA, KAFKA_PYTHON, AIOKAFKA = "librdkafka", "kafka-python", "aiokafka"
OLD_PYTHON, OLD_JAVA = "kafka-python 1.4 as Kafka 0.8 to 0.10", "Java 0.9 to 0.11"
JAVA = "Java 4.1"
KAFKAJS, FRANZ_GO, JAVA_2 = "kafkajs", "franz-go", "Java 2.8"
OURS = "our own"

_EACH = "tests/interop/test_each_client.py::"
_ADMIN = "tests/interop/test_admin_calls.py::test_"
_PROPERTIES = "tests/interop/test_topic_properties.py::test_"
_OFFSETS = "tests/interop/test_groups_of_admins.py::test_"
_OLD = "tests/interop/test_old_versions.py::"
_PROCESSES = "tests/peers/test_clients_in_groups.py::test_"
_07 = "tests/interop/test_first_generation.py::"

_OF_THREE = (LIBRDKAFKA, KAFKA_PYTHON, AIOKAFKA)
_OTHERS = (KAFKAJS, FRANZ_GO, JAVA_2)

MATRIX: Mapping[str, Mapping[str, str]] = {
    "create, list and delete topics": dict.fromkeys(
        _OF_THREE, f"{_EACH}test_topics_are_created_listed_and_deleted"
    ),
    "write and read, every codec, headers, idempotent": dict.fromkeys(
        _OF_THREE, f"{_EACH}test_what_it_writes_it_reads"
    )
    | {
        OLD_PYTHON: f"{_OLD}test_what_one_writes_the_other_reads",
        OLD_JAVA: "tests/peers/test_old_java.py::test_what_java_writes_the_others_read",
    },
    "read what another client wrote": dict.fromkeys(
        _OF_THREE, "tests/interop/test_across_clients.py::test_records_are_the_same_forevery_reader"
    )
    | {OLD_JAVA: "tests/peers/test_old_java.py::test_what_the_others_write_java_reads"},
    "offsets by position and time": dict.fromkeys(
        _OF_THREE, f"{_EACH}test_offsets_are_found_by_position_and_time"
    )
    | {OLD_PYTHON: f"{_OLD}test_times_lead_to_offsets_for_any_writer"},
    "committed offsets without members": dict.fromkeys(
        _OF_THREE, f"{_EACH}test_a_group_without_members_keeps_its_offset"
    )
    | {OLD_PYTHON: f"{_OLD}test_an_offset_that_an_old_client_commits_is_the_same_for_all"},
    "list and describe groups": {
        LIBRDKAFKA: f"{_OFFSETS}librdkafka_lists_and_describes_it",
        KAFKA_PYTHON: f"{_OFFSETS}kafka_python_lists_and_describes_it",
        AIOKAFKA: f"{_OFFSETS}aiokafka_lists_and_describes_it",
    },
    "groups whose members join, leave, hang and are killed": dict.fromkeys(
        _OF_THREE,
        "tests/interop/test_classic_groups.py::test_the_partitions_of_a_killed_member_go_to_the_others",
    )
    | dict.fromkeys(_OTHERS, f"{_PROCESSES}members_join_leave_hang_and_are_killed"),
    "read, process and write, each record once": dict.fromkeys(
        _OTHERS, f"{_PROCESSES}what_is_copied_in_transactions_arrives_once_though_the_copier_is_killed"
    ),
    "make topics, describe groups, delete records": dict.fromkeys(
        _OTHERS, f"{_PROCESSES}an_admin_makes_topics_describes_groups_and_deletes_records"
    ),
    "groups of the newer protocol (KIP-848)": {
        LIBRDKAFKA: "tests/interop/test_new_group_protocol.py::"
        "test_members_and_offsets_survive_a_restart_and_a_change_of_protocol",
        JAVA: "tests/peers/test_new_group_protocol.py::test_javas_consumer_reads_as_a_member",
    },
    "transactions": dict.fromkeys(
        _OF_THREE, "tests/interop/test_transactions.py::test_only_what_is_committed_is_read_and_counts"
    ),
    "groups with members, range, roundrobin or sticky, our Consumer among them": dict.fromkeys(
        (LIBRDKAFKA, KAFKA_PYTHON),
        "tests/interop/test_mixed_groups.py::test_a_foreign_member_shares_with_ours",
    ),
    "change properties of topics": {
        LIBRDKAFKA: f"{_PROPERTIES}librdkafka_sets_appends_and_deletes",
        KAFKA_PYTHON: f"{_PROPERTIES}kafka_python_changes_a_property",
    },
    "delete records": {
        LIBRDKAFKA: f"{_ADMIN}librdkafka_deletes_records",
        KAFKA_PYTHON: f"{_ADMIN}kafka_python_deletes_records_and_describes_directories",
        AIOKAFKA: f"{_ADMIN}aiokafka_deletes_records",
    },
    "describe the cluster, its directories": {
        LIBRDKAFKA: f"{_ADMIN}librdkafka_describes_the_cluster",
        KAFKA_PYTHON: f"{_ADMIN}kafka_python_deletes_records_and_describes_directories",
    },
    "read topics of Kafka 0.7": {
        LIBRDKAFKA: f"{_07}test_librdkafka",
        KAFKA_PYTHON: f"{_07}test_kafka_python",
        AIOKAFKA: f"{_07}test_aiokafka",
    },
}
"""Feature, client, and the test that has it work."""


def compatibility() -> str:
    """The text of ``docs/compatibility.md``."""
    return "\n".join(
        [
            INTRODUCTION,
            "## APIs\n",
            "| Key | API | Versions | Flexible from | How it is answered here | Left out |",
            "| --- | --- | --- | --- | --- | --- |",
            *(_row(REGISTRY[key]) for key in sorted(REGISTRY)),
            "\nNot served: a request closes the connection. Clients see it in ApiVersions before.\n",
            "| API | Why |",
            "| --- | --- |",
            *(f"| {names} | {why} |" for names, why in NOT_SERVED.items()),
            "\n## Clients\n",
            "Each link is the test that tries it (librdkafka by confluent-kafka). Others were not tried.\n",
            *_tried(),
            DIFFERENCES,
            *(f"* {each.why}" for each in ALLOWED),
            "",
        ]
    )


def _row(entry: Registration) -> str:
    row = table_row(entry)
    what = " ".join((entry.handler.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
    what = what.partition(". ")[2]  # the first sentence says what Kafka's guide does
    flexible = APIS[entry.key].first_flexible
    since = "never" if flexible == NEVER_FLEXIBLE else str(flexible)
    left_out = "" if row["Left out"] == "nothing" else row["Left out"]
    cells = row["API"], row["Versions"], since, _text(what), _text(left_out)
    return f"| {int(entry.key)} | {' | '.join(cells)} |"


def table_row(entry: Registration) -> dict[str, str]:
    """What the table at the top of a handler's file says of its API."""
    rows = docstring_table(sys.modules[entry.handler.__module__].__doc__ or "")
    return next(row for row in rows if row["API"] == APIS[entry.key].name)


def docstring_table(docstring: str) -> list[dict[str, str]]:
    """The rows of the table in a docstring, by column.

    The names of the columns are above a line of dashes, and begin where the dashes do. A line without a first
    cell continues the row above it; an empty line ends the table.
    """
    lines = docstring.splitlines()
    dashes = next(n for n, line in enumerate(lines) if line and not set(line) - set("- "))
    starts = [match.start() for match in re.finditer("-+", lines[dashes])]
    columns = list(zip(starts, [*starts[1:], None], strict=True))
    names, *parts = (
        [line[start:end].strip() for start, end in columns]
        for line in (lines[dashes - 1], *takewhile(str.strip, lines[dashes + 1 :]))
    )
    rows: list[list[str]] = []
    for cells in parts:
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [" ".join(filter(None, both)) for both in zip(rows[-1], cells, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _tried() -> Iterator[str]:
    """A row for each feature: its clients, those with the same test in one link."""
    yield from ("| Feature | Works with |", "| --- | --- |")
    for feature, tests in MATRIX.items():
        clients: dict[str, list[str]] = {}
        for client, test in tests.items():
            clients.setdefault(test.partition("::")[0], []).append(client)
        links = (f"[{', '.join(names)}](../{path})" for path, names in clients.items())
        yield f"| {feature} | {'; '.join(links)} |"


def _text(text: str) -> str:
    """For a cell of a table."""
    return text.replace("``", "`").replace("|", "\\|")
