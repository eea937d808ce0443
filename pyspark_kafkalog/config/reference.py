"""Configurations as documentation: Markdown tables, and a commented ``.properties`` file."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping

from pyspark_kafkalog.config.definition import Config, Property, describe
from pyspark_kafkalog.config.properties import format_properties

_WIDTH = 100


def markdown(cls: type[Config], base: type[Config] | None = None) -> str:
    """A table for each section; with ``base`` only the properties that ``cls`` adds to it."""
    lines: list[str] = []
    shown = {item.name for item in describe(base)} if base is not None else set()
    for item in describe(cls):
        if item.name in shown:
            continue
        if item.section:
            lines += ["", f"### {item.section}", ""]
        if item.section or not lines:
            lines += ["| Property | Default | Allowed | Meaning |", "| --- | --- | --- | --- |"]
        cells = (f"`{item.name}`", _default(item), item.allowed, _meaning(item))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).strip("\n") + "\n"


def properties_file(
    cls: type[Config],
    heading: str,
    given: Mapping[str, str] | None = None,
    *,
    prefix: str = "",
    left_out: Collection[str] = (),
    commented: Collection[str] = (),
) -> str:
    """Every property with its default, after a comment with its meaning, unit and range.

    Those without a default are commented out, unless ``given`` has a value: so `parse` reads the result.
    ``prefix`` precedes each name. The fields ``left_out`` are omitted, those ``commented`` always commented
    out.
    """
    given = given or {}
    blocks = ["".join(map(_comment, heading.splitlines()))]
    section = ""
    for item in describe(cls):
        section = item.section or section
        if item.field in left_out:
            continue
        if section:
            blocks.append(f"{'#' * 8} {section}\n")
            section = ""
        facts = [item.unit, item.allowed, f"default {item.text(item.default) or 'not set'}"]
        if item.aliases:
            facts.append(f"also read as {', '.join(prefix + alias for alias in item.aliases)}")
        value = given.get(item.name, item.text(item.default))
        line = format_properties({prefix + item.name: value})
        is_set = (value or item.default is not None) and item.field not in commented
        blocks.append(
            _comment(item.doc)
            + _comment("; ".join(fact for fact in facts if fact))
            + (line if is_set else "#" + line)
        )
    return "\n".join(blocks)


def _default(item: Property) -> str:
    if item.required:
        return "required"
    if item.default is None:
        return "not set"
    return f"`{item.text(item.default)}`" + (f" {item.unit}" if item.unit else "")


def _meaning(item: Property) -> str:
    text = item.doc
    if item.inherits:
        text += f" Default: the broker's `{item.inherits}`."
    if item.aliases:
        text += f" Also read as {', '.join(f'`{alias}`' for alias in item.aliases)}."
    return text


def _comment(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ") + "\n"
