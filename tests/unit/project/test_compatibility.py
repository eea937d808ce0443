"""What ``docs/compatibility.md`` is made of is true; `test_reference` says when it is to be written again."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import broker.server.handlers  # noqa: F401  (fills the registry)
from broker.server.dispatch import REGISTRY
from docs.compatibility import MATRIX, NOT_SERVED, described
from pyspark_kafkalog.protocol.exchange import ApiKey

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("test", sorted({test for row in MATRIX.values() for test in row.values()}))
def test_a_client_works_only_where_a_test_tries_it(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)


def test_what_is_said_to_be_missing_is_not_served() -> None:
    said = {name.strip() for names in NOT_SERVED for name in names.split(",")}
    assert said & {key.name.title().replace("_", "") for key in REGISTRY} == set()


@pytest.mark.parametrize("key", REGISTRY, ids=lambda key: key.name)
def test_a_handlers_docstring_begins_with_the_versions_that_it_serves(key: ApiKey) -> None:
    docstring = sys.modules[REGISTRY[key].handler.__module__].__doc__ or ""
    low, high = REGISTRY[key].versions
    versions = f"{low}-{high}" if low != high else f"{low}"
    assert docstring.startswith(f"{key.name.title().replace('_', '')} {versions}: ")
    assert all(described(docstring))
