"""What the pages in docs/recipes ask for, each in an environment of its own, with this checkout in it.

``python -m tests.support.foreign.recipe_environments`` fetches them; `make interop` does so too.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.support.foreign.fetched import ROOT, announce, fetched

_PINS = ROOT / "tests" / "peers" / "recipes"

EXTRAS = {"airflow": "arrow", "dbt": "arrow", "spark-submit": "arrow"}
"""Recipes, and the extras of ours that they name."""


def recipe_environment(recipe: str) -> Path:
    """The directory of its programs. Raises `NotAvailable` without PyPI."""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    made = [*uv, "venv", "environment"]
    wanted = ["-r", f"{recipe}.txt", "--editable", f"{ROOT}[{EXTRAS[recipe]}]"]
    install = [*uv, "pip", "install", "--python", "environment", *wanted]
    return (
        fetched(f"recipe-{recipe}", recipe, [_PINS / f"{recipe}.txt"], made, install) / "environment" / "bin"
    )


if __name__ == "__main__":
    for name in EXTRAS:
        announce(name, partial(recipe_environment, name))
