from __future__ import annotations

import re
import tempfile
from itertools import zip_longest
from pathlib import Path

import javaproperties
from hypothesis import assume, given
from hypothesis import strategies as st

from pyspark_kafkalog.config.properties import format_properties, load_properties, parse_properties
from pyspark_kafkalog.errors import KafkaError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SYNTAX = st.text("ab=: \t\f\\#!\r\nu0d8", max_size=40)


@given(st.dictionaries(TEXT | SYNTAX, TEXT | SYNTAX, max_size=8))
def test_what_is_written_is_read_back(properties: dict[str, str]) -> None:
    read = parse_properties(format_properties(properties))
    assert read == properties
    assert list(read) == list(properties)


@given(SYNTAX)
def test_text_is_read_as_javaproperties_reads_it(text: str) -> None:
    # A line of a backslash alone is an empty name to Java and us, and nothing to javaproperties.
    assume(not re.search(r"(?:^|[\r\n])[ \t\f]*\\(?:[\r\n]|$)", text))
    try:
        read = parse_properties(text)
    except KafkaError:
        assume(False)
    assert read == javaproperties.loads(text)


@given(TEXT | SYNTAX)
def test_any_text_is_read_or_refused_with_our_error(text: str) -> None:
    refusal = ""
    try:
        parse_properties(text)
    except KafkaError as e:
        refusal = str(e)
    assert refusal == "" or refusal.startswith("properties, line ")
    assert "\n" not in refusal


@given(st.binary(max_size=60))
def test_any_file_is_read_or_refused_with_our_error(data: bytes) -> None:
    refusal = ""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.properties"
        path.write_bytes(data)
        try:
            load_properties(path)
        except KafkaError as e:
            refusal = str(e)
    assert refusal == "" or refusal.startswith(str(path))


@given(
    st.dictionaries(SYNTAX, SYNTAX, max_size=4),
    st.lists(st.sampled_from(["# c\n", "\n", " \t\n", "! x=1\n"])),
)
def test_comments_and_blank_lines_change_nothing(properties: dict[str, str], noise: list[str]) -> None:
    lines = format_properties(properties).splitlines(keepends=True)
    mixed = "".join(before + line for before, line in zip_longest(noise, lines, fillvalue=""))
    assert parse_properties(mixed) == properties


@given(st.dictionaries(SYNTAX, SYNTAX, max_size=4), st.sampled_from(["\n", "\r", "\r\n"]))
def test_any_line_end_will_do(properties: dict[str, str], end: str) -> None:
    assert parse_properties(format_properties(properties).replace("\n", end)) == properties
