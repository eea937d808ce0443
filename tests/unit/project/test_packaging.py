"""What an installation offers: to Spark, to the shell, to whoever types ``make``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points, metadata, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
REQUIRED = {text: re.split(r"[ ;<>=\[!~]", text)[0] for text in requires("pyspark-kafkalog") or ()}

# As Spark's own lookup_data_sources.py goes about it.
LOOK_UP = """
from importlib import import_module
from pkgutil import iter_modules
from pyspark.sql.datasource import DataSource

for info in iter_modules():
    if info.name.startswith("pyspark_"):
        module = import_module(info.name)
        if hasattr(module, "DefaultSource") and issubclass(module.DefaultSource, DataSource):
            print(module.DefaultSource.name())
"""


def test_spark_finds_the_source_from_another_working_directory(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, "-c", LOOK_UP],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "kafkalog" in found.stdout.split()


def test_the_commands_are_installed() -> None:
    ours = {
        script.name: script.value
        for script in entry_points(group="console_scripts")
        if script.value.startswith(("pyspark_kafkalog.", "kafkalog_broker."))
    }
    assert ours == {"kafkalog": "pyspark_kafkalog.cli:main", "kafkalog-broker": "kafkalog_broker.cli:main"}
    for script in entry_points(group="console_scripts", name="kafkalog-broker"):
        assert callable(script.load())


def test_the_package_says_what_it_is_and_what_it_needs() -> None:
    said = metadata("pyspark-kafkalog")
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Requires-Python"] == ">=3.10"
    base = {name for text, name in REQUIRED.items() if "extra ==" not in text}
    assert {"kazoo", "crcmod", "python-snappy", "crc32c"} <= base
    brought = {"pyspark", "pyarrow", "pandas", "numpy", "numba", "isal"}
    assert not base & brought, "a cluster has its own, or these belong to extras"


WITHOUT = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1].split(',')))"
"""What is None there is not found, neither by an import nor by `find_spec`."""

SPARK = "pyspark (a Spark cluster has it): pip install 'pyspark-kafkalog[spark]'"
ARROW = "pyarrow: pip install 'pyspark-kafkalog[arrow]'"


@pytest.mark.parametrize(
    ("missing", "names", "needed"),
    [
        ("pyspark", "DefaultSource", SPARK),
        ("pyspark", "load read_arrow Producer", None),
        ("pyspark,pyarrow", "read_arrow", ARROW),
        ("pyspark,pyarrow", "load", ARROW),
        ("pyspark,pyarrow,pandas", "Producer Consumer Mirror create_topics Ledger", None),
    ],
)
def test_what_is_missing_is_named_with_the_extra_that_brings_it(
    missing: str, names: str, needed: str | None
) -> None:
    program = (
        f"{WITHOUT}\nimport pyspark_kafkalog as kafkalog\nfor name in sys.argv[2:]: getattr(kafkalog, name)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, missing, *names.split()],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    said = ran.stderr.strip().rpartition("\n")[2]
    assert said == (f"ModuleNotFoundError: kafkalog.{names} needs {needed}" if needed else "")


def test_the_design_says_why_each_dependency_is_there() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    table = text[text.index("## Dependencies") :].splitlines()
    cells = " ".join(line.split("|")[1] for line in table if line.startswith("| "))
    named = {
        name
        for name in REQUIRED.values()
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", cells, re.IGNORECASE)
    }
    assert named == set(REQUIRED.values())


def test_make_alone_prints_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    said = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {line.split()[0] for line in said.stdout.splitlines()} == targets
    assert {"demo", "test", "bench", "lint"} <= targets
