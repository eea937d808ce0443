"""Every command explains itself, and quickly."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kafkalog_broker.cli.broker_app import main as broker_main
from pyspark_kafkalog import __version__
from pyspark_kafkalog.cli.app import COMMANDS as TOP
from pyspark_kafkalog.cli.app import app, command_named


def leaves(group: dict[str, Any], *above: str) -> list[tuple[str, ...]]:
    """The names of all commands, those of groups behind their group's."""
    found: list[tuple[str, ...]] = []
    for name, command in group.items():
        inner = leaves(command.commands, *above, name) if hasattr(command, "commands") else [(*above, name)]
        found += inner
    return found


COMMANDS = leaves({name: command_named(name) for name in TOP})


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


def test_the_front_page_names_every_command_of_every_module() -> None:
    for home in {home for home, _ in TOP.values()}:
        module, _, attribute = home.partition(".")
        group = typer.main.get_group(getattr(import_module(f"pyspark_kafkalog.cli.{module}"), attribute))
        named = {name for name, (other, _) in TOP.items() if other == home}
        assert named == ({group.name} if group.name in TOP else {*group.commands})
    shown = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, ["--help"])
    for name, (_, summary) in TOP.items():
        assert f"  {name:<14}{summary}\n" in shown.output


def test_the_front_page_and_the_version_import_no_command() -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from pyspark_kafkalog.cli.app import app;"
        "shown = CliRunner().invoke(app, [sys.argv[1]]); assert shown.exit_code == 0; print(*sys.modules)"
    )
    for option in ("--help", "--version"):
        loaded = subprocess.run(
            [sys.executable, "-c", program, option], capture_output=True, text=True, check=True, timeout=120
        ).stdout.split()
        ours = {name for name in loaded if name.startswith("pyspark_kafkalog.")}
        ours -= {"pyspark_kafkalog._version"}  # where it was installed
        assert ours == {"pyspark_kafkalog.cli", "pyspark_kafkalog.cli.app", "pyspark_kafkalog.errors"}


def test_commands_load_neither_spark_nor_arrow_nor_the_producer_before_they_run() -> None:
    program = (
        "import sys; from pyspark_kafkalog.cli.app import COMMANDS, command_named;"
        "[command_named(name) for name in COMMANDS]; print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    heavy = {"pyspark", "pyarrow", "numpy", "pandas", "numba", "kazoo", "pyspark_kafkalog.producer.producer"}
    assert heavy & set(loaded) == set()


PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


def listed(text: str) -> dict[str, str]:
    """What the lists in ``text`` say of each option and argument."""
    return dict(re.findall(r"^\* `([^`]+)`: (.*)$", text, re.MULTILINE))


def chapter(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_the_page_explains_every_option_and_argument_of_a_command(names: tuple[str, ...]) -> None:
    command = command_named(names[0])
    for name in names[1:]:
        command = command.commands[name]
    page = PAGE.read_text(encoding="utf-8")
    own = chapter(page, f"kafkalog {' '.join(names)}")
    introduction, of_cluster, common = re.split(" take:|These", chapter(page, "Shared options"))
    named = re.findall(r"`([^`]+)`", "".join(re.findall("^Shared options: .*", own, re.MULTILINE)))
    arguments = own.partition("```\n")[2].partition("\n")[0].split()[len(names) + 2 :]
    found = {name: text for name, text in listed(common).items() if name in (*named, *arguments)}
    found |= {} if f"`{' '.join(names)}`" in introduction else listed(of_cluster)
    assert not found.keys() & listed(own).keys()
    found |= listed(own)
    parameters = [each for each in command.params if "--help" not in each.opts]
    options = [", ".join(each.opts) for each in parameters if each.param_type_name == "option"]
    assert found.keys() == {*options, *arguments}
    words = iter(arguments)
    for each in parameters:
        word = next(words) if each.param_type_name == "argument" else ", ".join(each.opts)
        assert found[word].startswith(" ".join(each.help.split()))
        default = getattr(each.default, "value", each.default)
        assert default in (None, False, ()) or each.required or f"`{default}`" in found[word]
