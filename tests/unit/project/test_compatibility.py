"""What ``docs/compatibility.md`` is made of is true; `test_reference` says when it is to be written again."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docs.compatibility import MATRIX, docstring_table, table_row
from kafkalog_broker.server.dispatch import REGISTRY
from kafkalog_broker.server.handlers import NOT_SERVED
from pyspark_kafkalog.protocol.exchange import APIS

ROOT = Path(__file__).parents[3]


def test_a_client_works_only_where_a_test_tries_it() -> None:
    named = {test for row in MATRIX.values() for test in row.values()}
    there = {
        f"{path}::{name}"
        for path in {test.partition("::")[0] for test in named}
        for name in re.findall(r"^ *def (\w+)\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    }
    assert named - there == set()


def test_what_is_said_to_be_missing_is_not_served() -> None:
    said = {name.strip() for names in NOT_SERVED for name in names.split(",")}
    assert said & {APIS[key].name for key in REGISTRY} == set()


def test_a_files_table_has_its_handlers_and_the_versions_that_they_serve() -> None:
    named: dict[str, set[str]] = {}
    for key, served in REGISTRY.items():
        low, high = served.versions
        row = table_row(served)
        assert row["Versions"] == (f"{low}-{high}" if low != high else f"{low}")
        assert row["Left out"]
        assert (served.handler.__doc__ or "").strip()
        named.setdefault(served.handler.__module__, set()).add(APIS[key].name)
    for module, names in named.items():
        assert {row["API"] for row in docstring_table(sys.modules[module].__doc__ or "")} == names


def test_a_row_continues_in_lines_without_a_first_cell() -> None:
    table = "Before.\n\nAPI  Left out\n---  -------\nA    one, and\n     two\nBcd  three\n\nAfter."
    assert docstring_table(table) == [
        {"API": "A", "Left out": "one, and two"},
        {"API": "Bcd", "Left out": "three"},
    ]
