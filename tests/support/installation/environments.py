"""Environments that hold nothing but an installed wheel, made by uv, and what `first_steps` says in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FIRST_STEPS = Path(__file__).with_name("first_steps.py")
_SECONDS = 1800


class Failed(Exception):
    """A command failed; the text is the end of what it said."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """What the command printed. Raises `Failed`."""
    # What the suite runs with must not be found in the environments.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))
    }
    try:
        ran = subprocess.run(
            [str(word) for word in command],
            cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as e:
        raise Failed(str(e)) from None
    if ran.returncode:
        raise Failed("\n".join((ran.stdout + ran.stderr).strip().splitlines()[-15:]))
    return ran.stdout


def uv(*arguments: str | Path) -> str:
    return run(sys.executable, "-m", "uv", "--quiet", *arguments)


def installed(
    directory: Path, wheel: Path, *others: str, extras: str = "", python: str, lowest: bool = False
) -> Path:
    """The interpreter of a new environment with ``wheel[extras]``, ``others`` and what they need.

    ``lowest``: of what the wheel asks for itself the lowest version that it allows. Raises `Failed`.
    """
    uv("venv", "--clear", "--python", python, directory)
    interpreter = directory / "bin" / "python"
    install = ("pip", "install", "--python", interpreter)
    if lowest:
        # Of a wheel that is named alone, all that it asks for would count as indirect, and be the newest.
        named = [word for extra in extras.split(",") for word in ("--extra", extra)]
        asked = ("--requirements", ROOT / "pyproject.toml", *named, *others)
        uv(*install, "--resolution", "lowest-direct", *asked)
        uv(*install, "--no-deps", wheel)
    else:
        uv(*install, f"pyspark-kafkalog{f'[{extras}]' if extras else ''} @ {wheel.as_uri()}", *others)
    return interpreter


def first_steps(interpreter: Path, directory: Path, *steps: str) -> dict[str, str | None]:
    """The error of each step, None for those that worked. Raises `Failed`: there was not even a broker."""
    said = run(interpreter, FIRST_STEPS, *steps, cwd=directory)
    found = {}
    for line in said.splitlines():
        if line.startswith('{"step"'):
            answer = json.loads(line)
            found[answer["step"]] = answer["error"]
    return {step: found.get(step, "it did not come so far") for step in steps}
