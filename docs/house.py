"""Counts how easy the tree is to find one's way in: ``python -m docs.house [--root DIR] [--short]``.

DIR is a checkout of any commit, by default this one, so that two can be compared. Files and lines are those
of both packages, ``pyspark_kafkalog`` and ``kafkalog_broker``; ``docs/journeys.py`` says what a journey is.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDERS = ("pyspark_kafkalog", "broker")
MANY_FILES = 15
THEMES = ("protocol/api", "server/handlers", "client", "client/login", "cli", "security")
"""Rooms with a file for each theme, whose names say the same in all of them."""
_GENERATION = re.compile(r"v\d\d")
JOURNEYS = {
    "produce": "a produced request, on the broker",
    "fetch": "a fetch, on the broker",
    "task": "a Spark task",
    "load": "a task of a load",
    "send": "Producer.send, until it is acknowledged",
}
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip

Graph = dict[str, set[str]]


def product_files(root: Path) -> list[Path]:
    """The Python files of both packages."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def module_of(path: Path, root: Path) -> str:
    """The dotted name of a file; a package's is that of its directory."""
    above = root / "broker"
    if not above.joinpath("__init__.py").exists() and path.is_relative_to(above):
        root = above  # it was a package itself once
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def code_lines(text: str) -> int:
    """Lines without those that are blank, or hold nothing but a comment or docstring."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def full_folders(files: Iterable[Path], root: Path) -> dict[str, int]:
    """Folders with more than `MANY_FILES` modules directly in them, ``__init__.py`` left out."""
    counts = Counter(str(path.parent.relative_to(root)) for path in files if path.name != "__init__.py")
    return {folder: count for folder, count in counts.most_common() if count > MANY_FILES}


def repeated_names(files: Iterable[Path], root: Path) -> dict[str, list[str]]:
    """File names of several things, and where they are.

    A theme may have one file in each of `THEMES` and one in the room that keeps its state; a generation
    (``v07``) one in each room. ``__init__.py`` and ``__main__.py`` are left out.
    """
    places: dict[str, list[str]] = {}
    for path in files:
        if path.name not in ("__init__.py", "__main__.py") and not _GENERATION.fullmatch(path.stem):
            places.setdefault(path.name, []).append(str(path.parent.relative_to(root)))
    return {name: where for name, where in sorted(places.items()) if sum(map(_is_room, where)) > 1}


def _is_room(folder: str) -> bool:
    """Whether a folder is not one of `THEMES`."""
    return not f"{folder}/".endswith(tuple(f"{theme}/" for theme in THEMES))


def contract_modules(root: Path) -> list[str]:
    """Single modules, not packages, that the import contract in ``pyproject.toml`` names in any list."""
    import tomllib

    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named: set[str] = set()
    for contract in contracts:
        prefixes = [f"{container}." for container in contract.get("containers", ())] or [""]
        for line in contract.get("layers", ()):
            words = line.replace("|", " ").replace(":", " ").replace("(", " ").replace(")", " ").split()
            named.update(prefix + word for prefix in prefixes for word in words)
        named.update(contract.get("source_modules", ()))
        named.update(contract.get("forbidden_modules", ()))
    modules = {module_of(path, root) for path in product_files(root) if path.name != "__init__.py"}
    return sorted(named & modules)


def imports(root: Path) -> Graph:
    """Which module imports which, in functions and under TYPE_CHECKING as well.

    ``from a import b`` is an import of module a.b if there is one, else of a. The packages above a module,
    which Python imports first, are left out.
    """
    files = product_files(root)
    modules = {module_of(path, root): path for path in files}
    graph: Graph = {}
    for name, path in modules.items():
        found: set[str] = set()
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) + 1 - node.level] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                inner = {f"{base}.{alias.name}" for alias in node.names}
                found |= inner & modules.keys()
                if not inner <= modules.keys():
                    found.add(base)
        graph[name] = (found & modules.keys()) - {name}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which imports, by some way, all others of its group; the largest first."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, todo = set[str](), [start]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph if a in reached[a]}
    return sorted((sorted(group) for group in groups), key=lambda group: (-len(group), group))


def journey(name: str, root: Path) -> list[str]:
    """The product's files that a journey crosses: see ``docs/journeys.py``, run with the code in ``root``."""
    script = Path(__file__).with_name("journeys.py")
    ran = subprocess.run(
        [sys.executable, str(script), name],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'broker'}", "PYTHONWARNINGS": "ignore"},
        cwd=root, stdout=subprocess.PIPE, text=True, timeout=300, check=True,
    )  # fmt: skip
    files: list[str] = json.loads(ran.stdout.splitlines()[-1])
    return files


def report(root: Path, *, journeys: bool = True) -> Iterable[str]:
    """The lines to print: each number, and below it what was counted."""
    files = product_files(root)
    texts = [path.read_text() for path in files]
    full, repeated, single = full_folders(files, root), repeated_names(files, root), contract_modules(root)
    found = circles(imports(root))
    yield f"{len(files):>7,} product files"
    yield f"{sum(text.count(chr(10)) for text in texts):>7,} lines"
    yield f"{sum(map(code_lines, texts)):>7,} lines of code (no blanks, comments and docstrings)"
    yield f"{len(full):>7,} folders with more than {MANY_FILES} files (no __init__.py)"
    yield from (f"          {folder}: {count}" for folder, count in full.items())
    yield f"{len(repeated):>7,} file names that mean several things"
    yield from (f"          {name}: {', '.join(where)}" for name, where in repeated.items())
    inner = [name for name in single if name.count(".") > 1]
    yield f"{len(single):>7,} single modules in the import contract, {len(inner)} of them inside a room"
    yield from (f"          {name}" for name in single)
    yield f"{len(found):>7,} import circles, of {sum(map(len, found))} modules"
    yield from (f"          {' '.join(group)}" for group in found)
    for name, what in JOURNEYS.items() if journeys else ():
        crossed = journey(name, root)
        yield f"{len(crossed):>7,} files crossed by {what}"
        yield from (f"          {file}" for file in crossed)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.house", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--no-journeys", action="store_true", help="only what can be counted without running")
    parser.add_argument("--short", action="store_true", help="the numbers alone")
    given = parser.parse_args()
    for line in report(given.root.resolve(), journeys=not given.no_journeys):
        if not (given.short and line.startswith(" " * 8)):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
