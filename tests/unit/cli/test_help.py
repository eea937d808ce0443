"""Every command explains itself, and quickly."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kafkalog_broker.cli.broker_app import main as broker_main
from pyspark_kafkalog import __version__
from pyspark_kafkalog.cli.app import app


def leaves(group: Any, *above: str) -> list[tuple[str, ...]]:
    """The names of all commands, those of groups behind their group's."""
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        inner = leaves(command, *above, name) if hasattr(command, "commands") else [(*above, name)]
        found += inner
    return found


COMMANDS = leaves(typer.main.get_command(app))


def test_these_are_the_commands() -> None:
    assert {" ".join(names) for names in COMMANDS} >= {
        "produce", "consume", "offsets", "lag", "mirror", "groups list", "groups describe", "groups reset",
        "topics create", "topics list", "topics describe", "topics delete",
    }  # fmt: skip


@pytest.mark.long("renders the help of every command")
@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_shows_an_example_and_flags_without_a_type(names: tuple[str, ...]) -> None:
    shown = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, [*names, "--help"])
    assert shown.exit_code == 0
    assert f"kafkalog {' '.join(names)} " in shown.output.partition("Usage:")[2].partition("\n")[2]
    assert "bool" not in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80


def test_the_version_is_shown_by_both_programs(capsys: pytest.CaptureFixture[str]) -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"kafkalog {__version__}\n")
    with pytest.raises(SystemExit) as ended:
        broker_main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"kafkalog-broker {__version__}\n")


def test_help_loads_neither_spark_nor_arrow_nor_the_producer() -> None:
    program = "import sys; import pyspark_kafkalog.cli.app; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    heavy = {"pyspark", "pyarrow", "numpy", "pandas", "numba", "kazoo", "pyspark_kafkalog.producer.producer"}
    assert heavy & set(loaded) == set()
