"""Any text as `sasl.jaas.config`: options come back as they were written; only ValueError is raised."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.security.jaas import parse_jaas

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BLANK = st.sampled_from(["", " ", "\n", "\t", "/* x */", "// x\n", "/x\r", "/\nx\n"])


def quoted(text: str, quote: str) -> str:
    signs = {"\n": "\\n", "\r": "\\r", "\\": "\\\\", quote: "\\" + quote}
    return quote + "".join(signs.get(char, char) for char in text) + quote


@given(st.dictionaries(TEXT, TEXT, max_size=4), st.sampled_from("\"'"), st.data())
def test_quoted_options_come_back(options: dict[str, str], quote: str, data: st.DataObject) -> None:
    parts = ["Module", " ", "required", " "]
    for key, value in options.items():
        parts += [quoted(key, quote), data.draw(BLANK), "=", data.draw(BLANK), quoted(value, quote)]
        parts.append(data.draw(BLANK))
    assert parse_jaas("".join([*parts, ";"])).options == options


@given(
    st.lists(
        st.sampled_from(
            [
                "Module",
                "required",
                "a",
                "=",
                ";",
                '"',
                "'",
                "\\",
                "/",
                "*",
                "\n",
                " ",
                "1",
                ".",
                "-",
                "{",
                "\u00e9",
                "\x80",
                "#",
            ]
        ),
        max_size=25,
    ).map("".join)
)
def test_whatever_the_text_only_value_error_is_raised(text: str) -> None:
    try:
        parse_jaas("M required " + text)
    except ValueError:
        pass


@given(st.from_regex(re.compile(r"[^;\"'/]{1,20}"), fullmatch=True))
def test_a_refusal_holds_nothing_of_an_unquoted_value(value: str) -> None:
    marked = "\u00e4\u00f6" + value + "\u00fc\u00df"
    message = ""
    try:
        parse_jaas(f"M required password={marked};")
    except ValueError as e:
        message = str(e)
    assert not re.search("\u00e4\u00f6|\u00fc\u00df", message)


def test_a_number_is_not_a_value() -> None:
    with pytest.raises(ValueError, match="Value not specified for key 'password'"):
        parse_jaas("M required password=-1.5;")
