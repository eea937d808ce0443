"""The tree in docs/design.md is that of the product's folders."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("pyspark_kafkalog", "broker")


def folders_in_the_tree() -> dict[str, str]:
    """Each folder that the tree has a line for, to what the line says."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    tree = page.split("## The tree\n\n```\n")[1].split("```")[0]
    found: dict[str, str] = {}
    path: list[str] = []
    for line in tree.splitlines():
        indent, name, says = re.fullmatch(r"( *)(\w+)/ +(\S.*)", line).groups()  # type: ignore[union-attr]
        path[len(indent) // 2 :] = [name]
        assert "/".join(path) not in found, line
        found["/".join(path)] = says
    return found


def test_the_tree_has_a_line_for_each_folder() -> None:
    folders = {
        above.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for above in path.parents
        if ROOT in above.parents
    }
    assert folders_in_the_tree().keys() == folders
