from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.config.properties import (
    MAX_FILE_BYTES,
    format_properties,
    load_properties,
    parse_properties,
)
from pyspark_kafkalog.errors import InvalidConfig


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb=2", {"a": "1", "b": "2"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t = \t1", {"a": "1"}),
        ("a==1", {"a": "=1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=1", {"": "1"}),
        ("a=1 ", {"a": "1 "}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("  a=1\n\f\n \t b=2", {"a": "1", "b": "2"}),
        ("a=1\na=2", {"a": "2"}),
        ("listeners=PLAINTEXT://127.0.0.1:9092", {"listeners": "PLAINTEXT://127.0.0.1:9092"}),
        ("a=1\u2028b\x0b\x1c=2", {"a": "1\u2028b\x0b\x1c=2"}),
        # Comments, which are not continued, and blank lines.
        *((text, {}) for text in ("", "# a=1", "  ! a=1", "\n \t\n", "# a \\\n# b")),
        ("# a \\\nb=1", {"b": "1"}),
        # A backslash at the end joins the next line.
        ("a=x\\\n   y", {"a": "xy"}),
        ("a=x,\\\r\n\ty,\\\r  z", {"a": "x,y,z"}),
        ("a=x\\\n# y", {"a": "x# y"}),
        ("a=x\\\\\nb=1", {"a": "x\\", "b": "1"}),
        ("a=x\\\\\\\ny", {"a": "x\\y"}),
        ("a=x\\\n\nb=1", {"a": "x", "b": "1"}),
        ("a=x\\", {"a": "x"}),
        ("a\\\n=x", {"a": "x"}),
        # Elsewhere it stands for a character.
        (r"a\=b=1", {"a=b": "1"}),
        (r"a\:b\ c 1", {"a:b c": "1"}),
        (r"\#a=1", {"#a": "1"}),
        (r"a=\t\n\r\f\\", {"a": "\t\n\r\f\\"}),
        (r"a=\q\"", {"a": 'q"'}),
        (r"a=\u0041\u00e9", {"a": "Aé"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        (r"a=\ leading", {"a": " leading"}),
    ],
)
def test_lines_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("escape", [r"\u12", r"\uzzzz", r"\u", r"\ud83d", r"\ude00\ud83d"])
def test_a_malformed_escape_names_the_file_and_the_line(escape: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^my\.properties, line 3: "):
        parse_properties(f"a=1\n\nb={escape}", source="my.properties")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes("\ufeffnode.id=3\nlog.dirs=/données\n".encode())
    assert load_properties(path) == {"node.id": "3", "log.dirs": "/données"}


def test_a_missing_file_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load_properties(tmp_path / "none.properties")
    assert str(caught.value) == f"cannot read {tmp_path}/none.properties: No such file or directory"


def test_a_file_that_is_not_text_is_refused_at_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"a=1\n\xff")
    with pytest.raises(InvalidConfig, match="is not UTF-8 text: byte 4 cannot be decoded"):
        load_properties(path)


def test_a_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(InvalidConfig, match=f"larger than {MAX_FILE_BYTES} bytes"):
        load_properties(path)


def test_what_is_written_stays_readable() -> None:
    assert format_properties({"listeners": "PLAINTEXT://[::1]:9092", "a b": " #x"}) == (
        "listeners=PLAINTEXT://[::1]:9092\na\\ b=\\ #x\n"
    )
