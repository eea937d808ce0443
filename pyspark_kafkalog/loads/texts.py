"""Options as Spark takes them."""

from __future__ import annotations

from collections.abc import Mapping


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Each value as Spark writes it; what is None was not given."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
