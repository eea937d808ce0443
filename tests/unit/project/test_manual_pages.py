"""Links in the pages lead somewhere, and tests that a page names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pyspark_kafkalog as kafkalog
from pyspark_kafkalog import errors
from pyspark_kafkalog.cli.app import COMMANDS, command_named
from pyspark_kafkalog.datasource.options.option_definitions import READ_OPTIONS
from pyspark_kafkalog.datasource.options.read_options import REFUSED as REFUSED_BY_READS
from pyspark_kafkalog.datasource.options.sink_options import REFUSED

ROOT = Path(__file__).parents[3]
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/parity.md", "tests/guarantees.md"]
PAGES += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [f"benchmarks/results/{path.name}" for path in sorted((ROOT / "benchmarks/results").glob("*.md"))]
# Their errors are those of our own code, not a caller's.
ABOUT_BYTES = ("docs/formats.md", "docs/protocol.md")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors_of(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def crashes_of(page: str) -> dict[tuple[str, str], str]:
    """Chapter and first cell of each line of its tables of crashes, to the second cell."""
    found, chapter = {}, ""
    for line in text_of(page).splitlines():
        chapter = line if line.startswith("## ") else chapter
        if chapter and line.startswith("| ") and not line.startswith(("| ---", "| What fails")):
            first, second = (cell.strip() for cell in line.strip("|").split(" | "))
            assert "" not in (first, second), line
            found[chapter, first] = second
    return found


def test_every_guarantee_is_shown_by_a_test_that_exists() -> None:
    shown = crashes_of("tests/guarantees.md")
    assert shown.keys() == crashes_of("docs/guarantees.md").keys()
    assert len(shown) > 50
    assert [cell for cell in shown.values() if not re.fullmatch(r"`test_\w+`(, `test_\w+`)*", cell)] == []
    named = set(re.findall(r"`(test_\w+)`", text_of("tests/guarantees.md")))
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = {
        name for source in sources for name in re.findall(r"^ *def (test_\w+)\(", source, re.MULTILINE)
    }
    assert len(named) > 40
    assert named - defined == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_chapters_that_exist(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text_of(page)):
        led = (ROOT / page).parent / target if target else ROOT / page
        assert led.exists(), target
        assert not anchor or anchor in anchors_of(led), (target, anchor)


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/cli.md"])
def test_commands_that_a_page_shows_have_these_options(page: str) -> None:
    for block in re.findall(r"```(?:\w+)?\n(.*?)```", text_of(page), re.DOTALL):
        block = block.replace("\\\n", " ")
        for words in re.findall(r"^(?:ExecStart=|[*]/.* )?(?:/\S*/)?kafkalog (\S.*)$", block, re.MULTILINE):
            names = words.partition("#")[0].partition("|")[0].split()
            if names[0].startswith("-"):
                continue
            assert names[0] in COMMANDS, words
            command = command_named(names[0])
            if hasattr(command, "commands"):
                command = command.commands[names[1]]
            known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            assert {name.partition("=")[0] for name in names if re.match(r"--?[a-z]", name)} <= known, words


@pytest.mark.parametrize("page", PAGES)
def test_examples_import_the_package_in_one_way(page: str) -> None:
    for code in re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL):
        compile(code, page, "exec")
        named = set(re.findall(r"\bkafkalog\.(\w+)", code))
        assert named <= set(kafkalog.__all__), named
        assert not named or "import pyspark_kafkalog as kafkalog\n" in code, code
        imported = re.findall(r"^from (pyspark_kafkalog\S*) import (.*)$", code, re.MULTILINE)
        assert not imported or imported == [("pyspark_kafkalog", "decoding")], imported


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ABOUT_BYTES])
def test_errors_that_a_page_names_can_be_caught_by_these_names(page: str) -> None:
    ours = {name for name, value in vars(errors).items() if isinstance(value, type)}
    named = set(re.findall(r"`(\w+)`", text_of(page))) & ours
    assert named <= set(kafkalog.__all__)


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 100


def test_the_manual_can_be_read_in_a_few_hours() -> None:
    assert sum(len(text_of(f"docs/{page.name}").split()) for page in (ROOT / "docs").glob("*.md")) <= 50_000


def test_the_way_from_sparks_connector_names_each_of_its_options() -> None:
    ours = {"protocol", "zookeeper.connect", "zk.connect", "broker.list"}
    theirs = (
        "assign subscribe subscribePattern startingTimestamp startingOffsetsByTimestamp startingOffsets "
        "endingTimestamp endingOffsetsByTimestamp endingOffsets startingOffsetsByTimestampStrategy "
        "failOnDataLoss kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs "
        "maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition "
        "groupIdPrefix kafka.group.id includeHeaders kafka.isolation.level kafka.bootstrap.servers"
    ).split()
    assert set(theirs) <= {option.name for option in READ_OPTIONS} - ours
    shown = text_of("docs/migration.md")
    missing = [name for name in [*theirs, *REFUSED_BY_READS, *REFUSED] if f"`{name}`" not in shown]
    assert missing == ["kafka.transactional.id"]
