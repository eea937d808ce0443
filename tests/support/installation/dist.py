"""``make dist``: builds sdist and wheel into dist/, checks them, and tries the wheel in fresh environments.

The wheel is made from the sdist, so that whoever builds it from there gets the same.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.installation.environments import ROOT, Failed, first_steps, installed, run, uv

DIST = ROOT / "dist"

ENVIRONMENTS = {"": ("broker",), "arrow": ("broker", "arrow"), "spark,fast": ("broker", "arrow", "spark")}
"""Extras, and the steps that they are enough for."""

_TOP = {"pyspark_kafkalog", "kafkalog_broker"}


def problems_of(wheel: Path, sdist: Path) -> list[str]:
    """What is wrong with what the files hold."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        top = {name.partition("/")[0] for name in names}
        found += [f"the wheel has {name} at its top" for name in sorted(top - _TOP) if ".d" not in name]
        for name in ("pyspark_kafkalog/py.typed", "kafkalog_broker/py.typed", "pyspark_kafkalog/_version.py"):
            if name not in names:
                found.append(f"the wheel lacks {name}")
        said = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
        found += [
            f"the description links to {link}, which leads nowhere from an index"
            for link in re.findall(r"\]\(([^)]+)\)", said)
            if not link.startswith(("https://", "#"))
        ]
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    found += [
        f"the sdist lacks {name}"
        for name in (
            "README.md",
            "LICENSE",
            "CHANGELOG.md",
            "pyproject.toml",
            "Makefile",
            "conf/server.properties",
        )
        if name not in names
    ]
    return found


def sizes_in(interpreter: Path) -> Counter[str]:
    """Bytes of each package of an environment."""
    (packages,) = interpreter.parent.parent.glob("lib/python*/site-packages")
    files = (file for file in packages.rglob("*") if file.is_file())
    found: Counter[str] = Counter()
    for file in files:
        found[file.relative_to(packages).parts[0]] += file.stat().st_size
    return found


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    try:
        uv("build", "--out-dir", DIST)
        (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        problems = problems_of(wheel, sdist)
        for extras, steps in ENVIRONMENTS.items():
            with TemporaryDirectory() as directory:
                interpreter = installed(Path(directory) / "venv", wheel, extras=extras, python=sys.executable)
                errors = first_steps(interpreter, Path(directory), *steps)
                sizes = sizes_in(interpreter)
            largest = ", ".join(f"{name} {size // 10**6}" for name, size in sizes.most_common(4))
            print(f"[{extras}]: {sum(sizes.values()) // 10**6} MB ({largest}); tried {', '.join(errors)}")
            problems += [f"[{extras}] {step}: {error}" for step, error in errors.items() if error]
    except Failed as e:
        problems = [str(e)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        for file in (wheel, sdist):
            print(f"dist/{file.name}: {file.stat().st_size:,} bytes")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
