"""Results files keep what was not measured again; docs/benchmarks.md agrees with them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import benchmarks.__main__ as benchmarks_command
from benchmarks.__main__ import BENCHMARKS, PAGE, RESULTS, results_of
from benchmarks.goals import BEGIN, END, LINES, Goal, goals_of, lines_with, renewed_page, table
from benchmarks.harness import Row
from benchmarks.harness import table as measured_table
from benchmarks.page import MARKER, chapter, renewed

ORDER = ["One", "Two", "Three"]
RESULT = (
    f"# Old\n\n## Two\n\nold two\n\n## Gone\n\nold\n\n## One\n\nold one\n\n{MARKER}\n\n## By hand\n\nkept\n"
)
MODULES = sorted({benchmark.module for benchmark in BENCHMARKS})


def by_hand_on_the_page() -> str:
    return PAGE.read_text(encoding="utf-8").partition(END)[2]


def test_a_measured_chapter_replaces_its_old_one_and_the_others_stay() -> None:
    new = renewed(RESULT, "numbers", ORDER, {"Three": "## Three\n\nnew\n", "Two": "## Two\n\nnew two\n"})
    introduction, _, rest = new.partition("\n## ")
    assert introduction.startswith("# Results of `numbers`\n\nThe docstring of [numbers.py](../numbers.py) ")
    assert rest == (
        f"One\n\nold one\n\n## Two\n\nnew two\n\n## Three\n\nnew\n\n{MARKER}\n\n## By hand\n\nkept\n"
    )


@pytest.mark.parametrize("page", [RESULT, ""])
@pytest.mark.parametrize("chapters", [{}, {"One": "## One\n\nnew\n"}])
def test_renewing_twice_changes_nothing(page: str, chapters: dict[str, str]) -> None:
    once = renewed(page, "numbers", ORDER, chapters)
    assert renewed(once, "numbers", ORDER, chapters) == once


def test_a_chapter_says_when_and_where_it_was_measured() -> None:
    text = chapter("One", "one", "| a |")
    assert text.startswith("## One\n\n`python -m benchmarks one`: 20")
    assert " processors, Python 3." in text
    assert text.endswith(".\n\n| a |\n")


@pytest.mark.parametrize("option", ["", "--dry-run"])
def test_a_run_writes_its_results_and_the_table_unless_it_is_dry(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, page = tmp_path / "results", tmp_path / "benchmarks.md"
    shutil.copytree(RESULTS, results)
    shutil.copy(PAGE, page)
    monkeypatch.setattr(benchmarks_command, "RESULTS", results)
    monkeypatch.setattr(benchmarks_command, "PAGE", page)
    rows = [Row("topic to record batches, 100 B", 12.34, 1.0, 12.34, 10.0, "Mrec/s", "peer: confluent-kafka")]
    monkeypatch.setattr(benchmarks_command.Benchmark, "run", lambda _benchmark, _rounds: rows)
    monkeypatch.setattr("sys.argv", ["benchmarks", "read_arrow", *option.split()])
    assert benchmarks_command.main() == 0
    if option:
        assert (results / "read_arrow.md").read_text() == results_of("read_arrow")
        assert page.read_text() == PAGE.read_text()
        return
    old, new = (RESULTS / "read_arrow.md").read_text(), (results / "read_arrow.md").read_text()
    assert new.partition(MARKER)[0].endswith(f".\n\n{measured_table(rows)}\n\n")
    assert new.partition(MARKER)[2] == old.partition(MARKER)[2] != ""
    assert "(../benchmarks/results/read_arrow.md) | confluent-kafka | 12.3 | 10 | yes |" in page.read_text()
    assert page.read_text().partition(END)[2] == by_hand_on_the_page()


def test_goals_are_read_from_the_measured_tables_only() -> None:
    rows = [
        Row("start", 0.5, 1.0, 2.0, 1.0, "s", "peer: the limit"),
        Row("fetch", 8.0, 10.0, 0.8, 2.41165, "MB/s", "peer: loop"),
        Row("for information", 1.0, 1.0, 1.0, None, "s"),
    ]
    text = f"# Results\n\n{measured_table(rows)}\n\n{MARKER}\n\n{measured_table(rows)}\n"
    assert goals_of(text) == [
        Goal("start", "2.00", "1", True, "peer: the limit"),
        Goal("fetch", "0.800", "2.41165", False, "peer: loop"),
    ]


def test_a_line_shows_the_range_of_its_rows_and_how_many_reach_the_goal() -> None:
    rows = [
        Row(f"10,000 partitions: {what}", 1.0, ratio, ratio, 1.0, "s")
        for what, ratio in (("stop", 69.1), ("start", 0.9))
    ]
    text = measured_table(rows)
    shown = table(lambda module: text if module == "partitions" else results_of(module)).splitlines()
    (line,) = [line for line in shown if "results/partitions.md" in line]
    assert line.endswith(" | limit we set | 0.900 to 69.1 | 1 | **1 of 2** |")


def test_a_row_that_no_line_takes_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"decode: no line of benchmarks/goals.py takes the row 'new \| '"):
        lines_with("decode", [Goal("new", "1.00", "1", True, "")])


def test_every_benchmark_has_a_results_file_with_its_tables() -> None:
    assert sorted(path.stem for path in RESULTS.glob("*.md")) == MODULES
    for module in MODULES:
        measured = results_of(module).partition(MARKER)[0]
        titles = [benchmark.title for benchmark in BENCHMARKS if benchmark.module == module]
        assert re.findall(r"^## (.*)$", measured, re.MULTILINE) == titles


def test_the_table_of_goals_is_computed_from_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed_page(page, results_of), "run: python -m benchmarks --table-only"
    assert page.count(BEGIN) == page.count(END) == 1
    lines = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    assert len(lines) == len(LINES) > 60


def test_every_goal_is_in_one_line_of_the_table() -> None:
    with_goals = {module: goals for module in MODULES if (goals := goals_of(results_of(module)))}
    assert with_goals.keys() == {line.module for line in LINES}
    for module, goals in with_goals.items():
        taken = [goal for _, rows in lines_with(module, goals) for goal in rows]
        assert sorted(taken) == sorted(goals)


def test_every_ratio_in_the_table_is_one_that_was_measured() -> None:
    generated = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    for module, ratios in re.findall(r"results/(\w+)\.md\) \| [^|]+ \| ([^|]+) \|", generated):
        assert set(ratios.split(" to ")) <= {goal.ratio for goal in goals_of(results_of(module))}


def test_the_page_explains_the_goals_that_are_not_reached_and_no_others() -> None:
    chapters = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", by_hand_on_the_page(), re.DOTALL | re.M))
    missed = {}
    for module in MODULES:
        lines = [
            [g.ratio for g in rows if not g.met]
            for _, rows in lines_with(module, goals_of(results_of(module)))
        ]
        missed[module] = {
            end for ratios in lines if ratios for end in (min(ratios, key=float), max(ratios, key=float))
        }
    assert chapters.keys() == {module for module, ratios in missed.items() if ratios}
    for module, text in chapters.items():
        assert {ratio for ratio in missed[module] if ratio not in text} == set(), module


def test_figures_written_by_hand_are_in_the_results() -> None:
    results = [results_of(module) for module in MODULES]
    recorded = set(re.findall(r"\d+(?:\.\d+)?", "".join(results)))
    goals = {f"{float(goal.goal):.3g}" for text in results for goal in goals_of(text)}
    shown = set(re.findall(r"\d+(?:\.\d+)?", by_hand_on_the_page()))
    assert shown - recorded - goals == set()


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").split()) <= 2800
