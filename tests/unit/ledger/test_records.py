from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from pyspark_kafkalog.clock import utc_text
from pyspark_kafkalog.errors import DamagedRecord, LoadError, NewerFormat
from pyspark_kafkalog.ledger.records import (
    OPTIONAL,
    SEAL,
    LedgerRecord,
    at_least,
    decode,
    encode,
    seal,
    unseal,
)

FIELDS: dict[str, object] = {
    "number": 7,
    "note": "später",
    "empty": [],
    "options": {"a": "b"},
    "entries": [{"name": "x", "ranges": [[0, 5], [5, 9]]}, {"files": [{"name": "y"}, {"name": "z"}]}],
}

TEXT = """{
  "record": "plan",
  "version": 1,
  "number": 7,
  "note": "später",
  "empty": [],
  "options": {"a": "b"},
  "entries": [
    {"name": "x", "ranges": [[0, 5], [5, 9]]},
    {
      "files": [
        {"name": "y"},
        {"name": "z"}
      ]
    }
  ],
  "sha256": "%s"
}
"""


def test_a_record_is_text_with_one_line_for_each_field_and_each_entry() -> None:
    canonical = json.dumps(
        {"record": "plan", "version": 1, **FIELDS}, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    assert seal("plan", FIELDS).decode() == TEXT % digest


def test_blanks_and_the_order_of_fields_do_not_matter() -> None:
    body = unseal("plan", seal("plan", FIELDS), "here")
    assert unseal("plan", json.dumps(dict(reversed(body.items()))).encode(), "here") == body


def test_a_record_cut_at_any_byte_is_damaged() -> None:
    data = seal("plan", {"number": 7, "note": "ä"})
    for size in range(len(data) - 2):  # without the last brace; the newline after it is no part
        with pytest.raises(DamagedRecord, match=r"^here is torn"):
            unseal("plan", data[:size], "here")


def test_a_changed_digit_anywhere_is_damage() -> None:
    data = seal("receipt", {"number": 7, "offsets": [10, 20], "text": "3"})
    for at, byte in enumerate(data):
        if chr(byte).isdigit():
            other = data[:at] + (b"1" if byte != ord("1") else b"0") + data[at + 1 :]
            with pytest.raises(DamagedRecord, match=r"^here "):
                unseal("receipt", other, "here")


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 20, b"[1]", b"7", b"\xff{}", b'{"version": NaN}', b"[" * 100_000, b"{}"]
)
def test_an_invalid_record_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedRecord, match=r"^here .*Restore the file from a copy"):
        unseal("plan", data, "here")


def test_a_record_of_another_kind_is_damaged_and_a_newer_format_says_that_an_update_is_needed() -> None:
    with pytest.raises(DamagedRecord, match=r"here is a record 'plan' of version 1, not 'commit'"):
        unseal("commit", seal("plan", FIELDS), "here")
    with pytest.raises(NewerFormat, match=r"here has format version 4; this release reads up to 3: update"):
        unseal("plan", b'{"record": "plan", "version": 4, "what": "ever"}', "here")


def test_a_name_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(LoadError, match="is not Unicode; rename it"):
        seal("commit", {"path": b"\xff".decode("utf-8", "surrogateescape")})


@dataclass(frozen=True, slots=True)
class Part(LedgerRecord):
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(LedgerRecord):
    """A field of each type. All but the one of a test are right."""

    kind = "sample"

    text: str = "a"
    optional_text: str | None = None
    number: int = 0
    from_one: int = field(default=1, metadata=at_least(1))
    optional_number: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    pairs: tuple[tuple[int, int], ...] = ()
    parts: tuple[Part, ...] = ()
    added: int = field(default=7, metadata=OPTIONAL)
    sha256: str = field(default="", metadata=SEAL)


def sample(**changes: object) -> bytes:
    body = json.loads(encode(Sample()))
    values = {name: value for name, value in body.items() if name not in ("record", "version", "sha256")}
    return seal("sample", values | changes)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("text", [1, None, ["a"]]),
        ("optional_text", [1, ["a"]]),
        ("number", [-1, True, 1.0, "1", None]),
        ("from_one", [0]),
        ("optional_number", [True, 1.0, "1"]),
        ("texts", [1, {"a": 1}, ["a"]]),
        ("pairs", [1, [1], [[1]], [[2, 1]], [[1, 1]], [[0, 5], [4, 6]], [[-1, 2]]]),
        ("parts", [1, {"a": 1}, ["a"]]),
        ("added", ["1", None]),
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_type_is_damage(name: str, wrong: list[object]) -> None:
    for value in wrong:
        with pytest.raises(DamagedRecord, match=rf"^here: '{name}' is "):
            decode(Sample, sample(**{name: value}), "here")


def test_a_missing_field_is_damage_and_an_entry_says_which_it_is() -> None:
    with pytest.raises(DamagedRecord, match=r"^here: 'text' is None, expected a string. Restore the file"):
        decode(Sample, seal("sample", {}), "here")
    with pytest.raises(
        DamagedRecord, match=r"^here, parts\[1\]: 'y' is None, expected a whole number, 0 or more"
    ):
        decode(Sample, sample(parts=[{"y": 1}, {}]), "here")


def test_a_dataclass_is_read_back() -> None:
    one = Sample(
        text="b", optional_number=-3, texts={"a": "b"}, pairs=((0, 5), (5, 9)), parts=(Part(1), Part(2))
    )
    data = encode(one)
    assert replace(decode(Sample, data, "here"), sha256="") == one
    assert b"added" not in data
    assert json.loads(encode(replace(one, added=8)))["added"] == 8


def test_times_are_utc_with_milliseconds() -> None:
    assert utc_text(1_795_284_000_123) == "2026-11-21T18:00:00.123Z"
    assert utc_text(0) == "1970-01-01T00:00:00.000Z"
