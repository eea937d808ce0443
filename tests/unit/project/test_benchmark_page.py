"""docs/benchmarks.md keeps what was not measured again."""

from __future__ import annotations

import pytest

from benchmarks.page import INTRODUCTION, MARKER, chapter, renewed

ORDER = ["One", "Two", "Three"]
PAGE = (
    f"# Old\n\n## Two\n\nold two\n\n## Gone\n\nold\n\n## One\n\nold one\n\n{MARKER}\n\n## By hand\n\nkept\n"
)


def test_a_renewed_chapter_takes_its_place_and_the_others_stay() -> None:
    assert renewed(PAGE, ORDER, {"Three": "## Three\n\nnew\n", "Two": "## Two\n\nnew two\n"}) == (
        f"{INTRODUCTION}\n## One\n\nold one\n\n## Two\n\nnew two\n\n## Three\n\nnew\n\n"
        f"{MARKER}\n\n## By hand\n\nkept\n"
    )


@pytest.mark.parametrize("chapters", [{}, {"One": "## One\n\nnew\n"}])
def test_renewing_twice_changes_nothing(chapters: dict[str, str]) -> None:
    once = renewed(PAGE, ORDER, chapters)
    assert renewed(once, ORDER, chapters) == once


def test_a_chapter_says_when_and_where_it_was_measured() -> None:
    text = chapter("One", "one", "| a |")
    assert text.startswith("## One\n\n`python -m benchmarks one`: 20")
    assert " processors, Python 3." in text
    assert text.endswith(".\n\n| a |\n")
