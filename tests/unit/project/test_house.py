"""``docs/house.py`` on a small tree whose numbers can be counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.house import (
    circles,
    code_lines,
    contract_modules,
    full_folders,
    imports,
    product_files,
    repeated_names,
    report,
)

FILES = {
    "pyspark_kafkalog/__init__.py": "",
    "pyspark_kafkalog/types.py": "",
    "pyspark_kafkalog/log/__init__.py": "from pyspark_kafkalog.log.segment import Segment\n",
    "pyspark_kafkalog/log/segment.py": "from ..types import Id\nfrom . import index\n",
    "pyspark_kafkalog/log/index.py": "def look():\n    from pyspark_kafkalog.log import scan\n",
    "pyspark_kafkalog/log/scan.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import pyspark_kafkalog.log.segment\n"
    ),
    "broker/kafkalog_broker/__init__.py": "",
    "broker/kafkalog_broker/index.py": '"""Says much.\n\nIndeed."""\n\n# nothing\nX = """\na\n"""  # text\n',
}
CONTRACT = """
[[tool.importlinter.contracts]]
layers = ["pyspark_kafkalog.log", "(pyspark_kafkalog.log.scan) | pyspark_kafkalog.types"]

[[tool.importlinter.contracts]]
containers = ["kafkalog_broker"]
layers = ["index : nothing"]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "pyproject.toml").write_text(CONTRACT)
    return tmp_path


def test_imports_in_functions_and_for_types_make_circles(root: Path) -> None:
    graph = imports(root)
    assert graph["pyspark_kafkalog.log"] == {"pyspark_kafkalog.log.segment"}
    assert graph["pyspark_kafkalog.log.segment"] == {"pyspark_kafkalog.types", "pyspark_kafkalog.log.index"}
    assert circles(graph) == [[f"pyspark_kafkalog.log.{name}" for name in ("index", "scan", "segment")]]


def test_two_circles_that_one_imports_are_two() -> None:
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}, "f": {"a"}}
    assert circles(graph) == [["c", "d", "e"], ["a", "b"]]


def test_docstrings_comments_and_blanks_are_not_code() -> None:
    assert code_lines(FILES["broker/kafkalog_broker/index.py"]) == 3


def test_only_modules_are_single_in_the_contract(root: Path) -> None:
    pytest.importorskip("tomllib")
    assert contract_modules(root) == [
        "kafkalog_broker.index",
        "pyspark_kafkalog.log.scan",
        "pyspark_kafkalog.types",
    ]


def test_a_folder_is_full_above_fifteen_modules(tmp_path: Path) -> None:
    files = [tmp_path / "a" / f"{n}.py" for n in range(16)] + [tmp_path / "b" / f"{n}.py" for n in range(15)]
    assert full_folders([*files, tmp_path / "b" / "__init__.py"], tmp_path) == {"a": 16}


def test_a_theme_has_one_file_in_its_rooms_and_one_where_its_state_is(tmp_path: Path) -> None:
    rooms = ["protocol/api", "broker/server/handlers", "cli", "client/login", "groups"]
    theme = [tmp_path / room / "groups.py" for room in rooms]
    twice = [tmp_path / room / "plan.py" for room in ("cli", "ledger", "log/cleaning")]
    generations = [tmp_path / room / "v07.py" for room in ("formats", "protocol")]
    found = repeated_names([*theme, *twice, *generations], tmp_path)
    assert found == {"plan.py": ["cli", "ledger", "log/cleaning"]}


def test_our_own_house_has_no_circles_and_no_name_for_several_things() -> None:
    root = Path(__file__).parents[3]
    assert circles(imports(root)) == []
    assert repeated_names(product_files(root), root) == {}


def test_the_report_has_numbers_and_names(root: Path) -> None:
    pytest.importorskip("tomllib")
    lines = list(report(root, journeys=False))
    assert "      8 product files" in lines
    assert "      1 file names that mean several things" in lines
    assert "          index.py: broker/kafkalog_broker, pyspark_kafkalog/log" in lines
    assert "      1 import circles, of 3 modules" in lines
