from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from pyspark_kafkalog.config.definition import (
    Config,
    between,
    configuration,
    describe,
    nearest,
    not_empty,
    one_of,
    parse,
    parse_layers,
    prop,
)
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig


@configuration
class Sample(Config):
    size: int = prop("size.bytes", 10, int, aliases=("size", "old.size"), check=between(1, 100), unit="bytes")
    on: bool = prop("is.on", True, bool)
    kind: str = prop("kind", "red", str, check=one_of("red", "blue"))
    words: tuple[str, ...] = prop("words", ("a",), tuple, check=not_empty)
    limit_ms: int | None = prop("limit.ms", None, int)


@configuration
class Needy(Config):
    where: str = prop("where", kind=str, check=not_empty)


def test_text_becomes_typed_values_and_those_of_the_right_type_are_taken_as_they_are() -> None:
    given = {"size.bytes": " 7 ", "is.on": "FALSE", "kind": "blue ", "words": "x, y,,z", "limit.ms": "-5"}
    assert parse(Sample, given, source="s") == Sample(7, False, "blue", ("x", "y", "z"), -5)
    typed: dict[str, object] = {"size.bytes": 7, "is.on": False, "words": ["x", "y"], "limit.ms": None}
    assert parse(Sample, typed, source="s") == Sample(7, False, "red", ("x", "y"), None)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("size.bytes", "0", "s: size.bytes=0 is not allowed; allowed: 1 to 100"),
        ("size.bytes", "101", "s: size.bytes=101 is not allowed; allowed: 1 to 100"),
        ("size.bytes", "ten", "s: size.bytes=ten is not allowed; allowed: 1 to 100"),
        ("size.bytes", "1_0", "s: size.bytes=1_0 is not allowed; allowed: 1 to 100"),
        ("size.bytes", "", "s: size.bytes= is not allowed; allowed: 1 to 100"),
        ("size.bytes", True, "s: size.bytes=true is not allowed; allowed: 1 to 100"),
        ("size.bytes", 7.0, "s: size.bytes=7.0 is not allowed; allowed: 1 to 100"),
        ("old.size", "0", "s: size.bytes=0 is not allowed; allowed: 1 to 100"),
        ("is.on", "yes", "s: is.on=yes is not allowed; allowed: true or false"),
        ("is.on", 1, "s: is.on=1 is not allowed; allowed: true or false"),
        ("kind", "Red", "s: kind=Red is not allowed; allowed: one of red, blue"),
        ("kind", "a\nb", "s: kind='a\\nb' is not allowed; allowed: one of red, blue"),
        ("words", " , ", "s: words= ,  is not allowed; allowed: not empty"),
        ("words", [1], "s: words=[1] is not allowed; allowed: not empty"),
        ("limit.ms", "9" * 19, f"s: limit.ms={'9' * 19} is not allowed; allowed: a whole number"),
        ("limit.ms", "9" * 200, f"s: limit.ms={'9' * 100}... is not allowed; allowed: a whole number"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse(Sample, {name: value}, source="s")
    assert str(caught.value) == message
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_values_given_in_code_are_checked_too() -> None:
    with pytest.raises(InvalidConfig, match=r"^Sample: size\.bytes=0 is not allowed; allowed: 1 to 100$"):
        Sample(size=0)


def test_an_unknown_name_warns_with_the_nearest_known_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse(Sample, {"sise.bytes": "3", "zzz": "1"}, source="my.properties") == Sample()
    assert caplog.messages == [
        "my.properties: unknown property sise.bytes is ignored; did you mean size.bytes?",
        "my.properties: unknown property zzz is ignored",
    ]


def test_the_first_of_two_names_for_one_property_counts(caplog: pytest.LogCaptureFixture) -> None:
    assert parse(Sample, {"old.size": "3", "size": "4"}, source="s").size == 4
    assert caplog.messages == ["s: old.size is ignored: size is given as well"]


def test_a_later_source_goes_before_by_whichever_name(caplog: pytest.LogCaptureFixture) -> None:
    layers = [("file", {"size.bytes": "3", "kind": "blue"}), ("--override", {"old.size": "4"})]
    assert parse_layers(Sample, layers) == Sample(size=4, kind="blue")
    assert caplog.messages == []
    with pytest.raises(InvalidConfig, match=r"^--override: size\.bytes=x"):
        parse_layers(Sample, [("file", {}), ("--override", {"size": "x"})])


def test_a_property_without_a_default_must_be_given() -> None:
    with pytest.raises(InvalidConfig, match=r"^s: where is missing; allowed: not empty$"):
        parse(Needy, {}, source="s")
    with pytest.raises(InvalidConfig, match=r"^s: where is missing"):
        parse(Needy, {"where": None}, source="s")


def test_as_properties_leaves_out_what_is_not_set() -> None:
    assert Sample(on=False, words=("a", "b")).as_properties() == {
        "size.bytes": "10", "is.on": "false", "kind": "red", "words": "a,b",
    }  # fmt: skip


def test_describe_holds_what_users_must_know() -> None:
    size, *_, limit = describe(Sample)
    assert (size.field, size.name, size.default, size.unit, size.aliases, size.allowed) == (
        "size", "size.bytes", 10, "bytes", ("size", "old.size"), "1 to 100",
    )  # fmt: skip
    assert (limit.default, limit.allowed, limit.required) == (None, "a whole number", False)


def test_a_field_that_is_not_a_property_is_a_mistake_in_the_code() -> None:
    @dataclass(frozen=True)
    class Wrong(Config):
        size: int = 3

    with pytest.raises(TypeError, match=r"Wrong\.size is not made by prop\(\)"):
        Wrong()


@pytest.mark.parametrize(("name", "near"), [("kinds", "kind"), ("wrods", "words"), ("nothing.like", None)])
def test_nearest_is_none_where_nothing_is_like_it(name: str, near: Any) -> None:
    assert nearest(name, ["kind", "words"]) == near
