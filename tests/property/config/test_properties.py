from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
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
