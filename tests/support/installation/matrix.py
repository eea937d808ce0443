"""``make matrix``: the wheel with the lowest and newest packages that it allows, on each Python and PySpark.

It tries `first_steps` in an environment of each row, prints the rows as it goes, and writes docs/install.md.
A Python that uv can neither find nor fetch is a row that failed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.support.installation.environments import ROOT, Failed, first_steps, installed, run, uv

PAGE = ROOT / "docs" / "install.md"
_BEGIN, _END = "<!-- make matrix -->\n", "<!-- end -->\n"


class Row(NamedTuple):
    python: str
    extras: str
    pyspark: str = ""
    """The version to be installed; empty for whatever the extras bring."""
    lowest: bool = False


ROWS = [
    Row("3.10", "spark,fast", "pyspark==4.0.*", lowest=True),
    Row("3.10", "spark,fast"),
    Row("3.11", "spark,fast", "pyspark==4.0.*"),
    Row("3.11", "spark,fast", "pyspark==4.1.*"),
    Row("3.12", "spark,fast", "pyspark==4.2.*"),
    Row("3.12", "spark,fast"),
    Row("3.13", "spark,fast"),
    Row("3.10", "arrow", lowest=True),
    Row("3.13", ""),
]

_SHOWN = ("pyspark", "pyarrow", "pandas", "numpy", "numba")


def main() -> int:
    with TemporaryDirectory() as directory:
        uv("build", "--wheel", "--out-dir", directory)
        (wheel,) = Path(directory).glob("*.whl")
        lines = [
            f"| Python | extras | packages | {' | '.join(_SHOWN)} | broker | without Spark | Spark |",
            "| --- " * (len(_SHOWN) + 6) + "|",
        ]
        failed = 0
        for row in ROWS:
            began = time.monotonic()
            line, errors = _tried(row, wheel, Path(directory))
            failed += bool(errors)
            print(line, f"{time.monotonic() - began:.0f} s", *errors, sep="\n  ", flush=True)
            lines.append(line)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
    PAGE.write_text(before + _BEGIN + "\n".join(lines) + "\n" + _END + after, encoding="utf-8")
    return 1 if failed else 0


def _tried(row: Row, wheel: Path, directory: Path) -> tuple[str, list[str]]:
    """The table's line, and the errors."""
    steps = ["broker", *(["arrow"] if row.extras else []), *(["spark"] if "spark" in row.extras else [])]
    others = [row.pyspark] if row.pyspark else []
    where = directory / "venv"
    kind = "lowest" if row.lowest else "newest"
    try:
        python = installed(where, wheel, *others, extras=row.extras, python=row.python, lowest=row.lowest)
        versions = dict(
            line.split("==") for line in uv("pip", "freeze", "--python", python).splitlines() if "==" in line
        )
        errors = first_steps(python, directory, *steps)
        release = run(python, "-c", "import platform; print(platform.python_version())").strip()
    except Failed as e:
        empty = " | ".join([row.python, row.extras or "none", kind, *[""] * len(_SHOWN), "no", "", ""])
        return f"| {empty} |", [str(e)]
    cells = [versions.get(name, "") for name in _SHOWN]
    results = [
        ("" if step not in errors else "no" if errors[step] else "yes")
        for step in ("broker", "arrow", "spark")
    ]
    line = " | ".join([release, row.extras or "none", kind, *cells, *results])
    return f"| {line} |", [f"{step}: {error}" for step, error in errors.items() if error]


if __name__ == "__main__":
    sys.exit(main())
