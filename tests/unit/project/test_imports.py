"""What importing costs: Spark imports the package in every worker, the broker its lower layers."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kafkalog_broker
import pyspark_kafkalog as kafkalog

HEAVY = ("pyspark", "pyarrow", "numpy", "numba", "pandas", "kazoo", "typer", "rich")
MORE_MODULES = 15
MODULES_OF_THE_BROKER = 310

PROGRAM = """
import json, sys
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def imported_by(statement: str) -> list[str]:
    """The modules that ``statement`` loads in a fresh interpreter."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement)],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    loaded: list[str] = json.loads(ran.stdout)
    return loaded


def roots(modules: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_importing_the_package_loads_next_to_nothing() -> None:
    loaded = imported_by("import pyspark_kafkalog")
    assert [name for name in loaded if name.startswith("pyspark_kafkalog.")] == []
    assert not roots(loaded) & set(HEAVY)
    # A time would be an other one on each machine; the number of modules is what it depends on.
    assert len(loaded) <= MORE_MODULES


@pytest.mark.long("a process for each case")
def test_importing_the_package_changes_no_environment_variable() -> None:
    # A driver's own interpreter in PYSPARK_PYTHON would break executors on other machines.
    program = "import os; b = dict(os.environ); from pyspark_kafkalog import *; assert dict(os.environ) == b"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.long("a process for each case")
@pytest.mark.parametrize(
    "statement",
    [
        "from pyspark_kafkalog import Producer, KafkaError, create_topics, ensure_java",
        "import pyspark_kafkalog.client.fetcher",
        "import kafkalog_broker.server.broker",
        "from kafkalog_broker import start_broker",
    ],
)
def test_clients_and_broker_need_neither_spark_nor_arrow_nor_numpy_nor_kazoo(statement: str) -> None:
    assert not roots(imported_by(statement)) & {"pyspark", "pyarrow", "numpy", "numba", "pandas", "kazoo"}


def test_a_broker_starts_without_what_only_some_configurations_need() -> None:
    loaded = imported_by("import kafkalog_broker.server.broker")
    assert not roots(loaded) & {"prometheus_client", "http", "email", "jwt", "re2", "cryptography"}
    clients = "pyspark_kafkalog.client.", "pyspark_kafkalog.config.c"
    assert [name for name in loaded if name.startswith(clients)] == []
    assert len(loaded) <= MODULES_OF_THE_BROKER


def test_the_source_is_imported_without_arrow_and_numba() -> None:
    loaded = roots(imported_by("from pyspark_kafkalog import DefaultSource"))
    assert "pyspark" in loaded
    assert not loaded & {"pyarrow", "numpy", "numba", "pandas"}


def test_public_names_are_those_listed_and_others_are_refused() -> None:
    assert dir(kafkalog) == sorted(kafkalog.__all__)
    for name in kafkalog.__all__:
        assert getattr(kafkalog, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Reader'"):
        _ = kafkalog.Reader  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", [kafkalog, kafkalog_broker], ids=lambda package: package.__name__)
def test_type_checkers_see_no_name_but_those_listed(package: ModuleType) -> None:
    # A __getattr__ that they see would make every misspelt name one of ours.
    code = ast.parse(Path(str(package.__file__)).read_text())
    seen = {node.name for node in code.body if isinstance(node, ast.FunctionDef)}
    assert "__getattr__" not in seen
    (hidden,) = (node for node in code.body if isinstance(node, ast.If) and "not" in ast.unparse(node.test))
    assert ast.unparse(hidden.test) == "not TYPE_CHECKING"
    assert dir(package) == sorted(package.__all__)
