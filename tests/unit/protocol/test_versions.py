"""The list of APIs and versions, and that docs/compatibility.md says the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import kafkalog_broker.server.handlers  # noqa: F401  (fills the registry)
from docs.compatibility import docstring_table
from kafkalog_broker.server.dispatch import REGISTRY
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol import api as protocol_api
from pyspark_kafkalog.protocol.codec import ERROR_CODE, Array, specs
from pyspark_kafkalog.protocol.exchange import APIS, NEVER_FLEXIBLE, ApiKey, VersionRange


def test_a_version_range_holds_both_of_its_ends() -> None:
    versions = VersionRange(3, 5)
    assert [version in versions for version in (2, 3, 4, 5, 6)] == [False, True, True, True, False]
    assert "3" not in versions


def documented() -> dict[int, tuple[str, tuple[int, int], int]]:
    """Key to name, versions, and first flexible version."""
    text = (Path(__file__).parents[3] / "docs" / "compatibility.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)(?:-(\d+))? \| (\d+|never) \|", text, re.MULTILINE)
    return {
        int(key): (
            name,
            (int(low), int(high or low)),
            NEVER_FLEXIBLE if flexible == "never" else int(flexible),
        )
        for key, name, low, high, flexible in rows
    }


def test_the_documentation_has_these_apis_in_these_versions() -> None:
    held = {int(api.key): (api.name, (*api.versions,), api.first_flexible) for api in APIS.values()}
    assert documented() == held
    assert list(ApiKey) == sorted(held)


def test_a_themes_docstring_has_its_apis_and_their_versions() -> None:
    held: dict[str, set[tuple[str, str, str]]] = {}
    for api in APIS.values():
        low, high = api.versions
        flexible = "never" if api.first_flexible == NEVER_FLEXIBLE else str(api.first_flexible)
        row = api.name, f"{low}-{high}" if low != high else f"{low}", flexible
        held.setdefault(api.theme, set()).add(row)
    for theme, rows in held.items():
        table = docstring_table(import_module(f"{protocol_api.__name__}.{theme}").__doc__ or "")
        assert all(row["Left out"] for row in table)
        assert sorted((row["API"], row["Versions"], row["Flexible from"]) for row in table) == sorted(rows)
    assert {module.name for module in iter_modules(protocol_api.__path__)} == held.keys()


def test_the_broker_serves_what_the_documentation_says() -> None:
    served = {int(key): entry.versions for key, entry in REGISTRY.items()}
    assert served == {key: held for key, (_, held, _) in documented().items()}


def test_error_codes_are_read_as_such() -> None:
    """Every int16 called error_code; Kafka's definitions have no type for them."""
    found = {
        f"{cls.__name__}.{name}"
        for api in APIS.values()
        for cls in (*structs(api.request), *structs(api.response))
        for name, spec in specs(cls)
        if name.endswith("error_code") and (spec.type is not ERROR_CODE or spec.default is not ErrorCode.NONE)
    }
    assert found == set()


def structs(cls: Any) -> Iterator[Any]:
    yield cls
    for _, spec in specs(cls):
        element = spec.type.element if isinstance(spec.type, Array) else spec.type
        if isinstance(element, type):
            yield from structs(element)
