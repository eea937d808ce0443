"""How many examples a property has: ten in `make test`, forty in `make test-all`, 2,000 in `make soak`.

The first two try the same ones in every run, `make soak` random ones.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

PROFILES = {"few": 10, "usual": 40, "many": 2000}
"""Examples by profile; the Makefile names it with ``--hypothesis-profile``."""


def register_profiles() -> None:
    """Without an option it is the usual one. No example has a deadline: a machine may be busy."""
    for name, count in PROFILES.items():
        random = name == "many"
        settings.register_profile(
            name, max_examples=count, derandomize=not random, database=None, deadline=None, print_blob=random
        )
    settings.load_profile("usual")


def examples(percent: int, **others: Any) -> settings:
    """Settings of a test that needs more or fewer examples than others."""
    return settings(max_examples=max(2, percent * settings().max_examples // 100), **others)


def seeds(few: int, usual: int) -> list[Any]:
    """Seeds of a test that makes its own examples: ``few`` in `make test`, ``usual`` in `make test-all`."""
    long = pytest.mark.long("more seeds of the same")
    return [*range(few), *(pytest.param(seed, marks=long) for seed in range(few, usual))]
