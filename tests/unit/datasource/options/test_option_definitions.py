"""docs/datasource.md has every option and column; tests/parity.md has a test for each line of its list."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_kafkalog.datasource.options.option_definitions import READ_OPTIONS, SINK_OPTIONS
from pyspark_kafkalog.datasource.options.read_options import REFUSED as REFUSED_BY_READS
from pyspark_kafkalog.datasource.options.row_schema import COLUMN_TYPES_07
from pyspark_kafkalog.datasource.options.sink_options import REFUSED
from pyspark_kafkalog.datasource.sink.sink_rows import SINK_COLUMNS

ROOT = Path(__file__).parents[4]
MANUAL = (ROOT / "docs" / "datasource.md").read_text(encoding="utf-8")
PARITY = (ROOT / "tests" / "parity.md").read_text(encoding="utf-8")


def chapter(title: str) -> str:
    return MANUAL.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_test_that_the_checklist_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PARITY))
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.MULTILINE)}
    assert len(named) > 40
    assert named - defined == set()


def test_every_line_of_the_checklist_is_held_or_listed_as_different() -> None:
    told = re.sub(r"R3 to R11", " ".join(f"R{n}" for n in range(3, 12)), PARITY)
    told = re.sub(r"S39 to S68", " ".join(f"S{n}" for n in range(39, 69)), told)
    lines = [f"B{n}" for n in range(1, 23)] + [f"R{n}" for n in range(1, 19)] + [f"C{n}" for n in range(1, 7)]
    lines += [f"S{n}" for n in range(1, 81)] + [f"W{n}" for n in range(1, 15)]
    assert [line for line in lines if not re.search(rf"\b{line}\b", told)] == []


def test_the_manual_shows_every_column_and_every_refused_option() -> None:
    row = chapter("The row")
    assert [name for name in COLUMN_TYPES_07 if f"`{name}`" not in row] == []
    assert [name for name in REFUSED_BY_READS if f"`{name}`" not in chapter("Options")] == []
    assert [name for name in SINK_COLUMNS if f"`{name}`" not in chapter("Writing")] == []
    assert [name for name in REFUSED if f"`{name}`" not in chapter("Writing")] == []


def test_every_option_has_a_sentence() -> None:
    assert [option.name for option in (*READ_OPTIONS, *SINK_OPTIONS) if not option.doc.endswith(".")] == []
