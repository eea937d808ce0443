"""What ``docs/compatibility.md`` is made of is true; `test_reference` says when it is to be written again."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import kafkalog_broker.server.handlers  # noqa: F401  (fills the registry)
from docs.compatibility import MATRIX, NOT_SERVED, described
from kafkalog_broker.server.dispatch import REGISTRY

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
    assert said & {key.name.title().replace("_", "") for key in REGISTRY} == set()


def test_a_handlers_docstring_begins_with_the_versions_that_it_serves() -> None:
    for key, served in REGISTRY.items():
        docstring = sys.modules[served.handler.__module__].__doc__ or ""
        low, high = served.versions
        versions = f"{low}-{high}" if low != high else f"{low}"
        assert docstring.startswith(f"{key.name.title().replace('_', '')} {versions}: ")
        assert all(described(docstring))
