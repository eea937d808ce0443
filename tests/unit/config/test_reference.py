from __future__ import annotations

from dataclasses import dataclass

import pytest

from docs.generate import CHAPTERS, ROOT, generated
from pyspark_kafkalog.config.definition import Config, between, describe, prop
from pyspark_kafkalog.config.properties import markdown, parse_properties, properties_file


@dataclass(frozen=True)
class Sample(Config):
    size: int = prop(
        "size.bytes", 10, int, aliases=("size",), check=between(1, 100), unit="bytes", section="Sizes",
        doc="How large.", inherits="log.size",
    )  # fmt: skip
    limit: int | None = prop("limit.ms", None, int, unit="ms", doc="How | long.")


def test_a_table_says_default_range_unit_and_older_names() -> None:
    assert markdown(Sample) == (
        "### Sizes\n"
        "\n"
        "| Property | Default | Allowed | Meaning |\n"
        "| --- | --- | --- | --- |\n"
        "| `size.bytes` | `10` bytes | 1 to 100 | How large. Default: the broker's `log.size`."
        " Also read as `size`. |\n"
        "| `limit.ms` | not set | a whole number | How \\| long. |\n"
    )


def test_a_properties_file_comments_every_property_and_may_give_values_of_its_own() -> None:
    assert properties_file(Sample, "First.\nSecond.") == (
        "# First.\n# Second.\n"
        "\n######## Sizes\n"
        "\n# How large.\n# bytes; 1 to 100; default 10; also read as size\nsize.bytes=10\n"
        "\n# How | long.\n# ms; a whole number; default not set\n#limit.ms=\n"
    )
    text = properties_file(Sample, "Heading.", {"limit.ms": "7"})
    assert parse_properties(text) == {"size.bytes": "10", "limit.ms": "7"}
    assert "default not set" in text


CLASSES = [*dict.fromkeys(cls for _, _, cls, _ in CHAPTERS)]


GENERATED = generated()


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in GENERATED])
def test_generated_files_are_what_the_definitions_give(path: str) -> None:
    written = (ROOT / path).read_text(encoding="utf-8")
    assert written == GENERATED[ROOT / path], "run `make docs`"


@pytest.mark.parametrize("cls", CLASSES)
def test_every_property_has_a_sentence_and_every_number_a_unit(cls: type[Config]) -> None:
    for item in describe(cls):
        assert item.doc.endswith((".", ".)")), item.name
        if item.kind is int and item.name != "node.id" and not item.name.endswith(".level"):
            assert item.unit, item.name
