from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.classic.producer.router import JavaHashPartitioner, java_hash

texts = st.text(st.characters(exclude_categories=()), max_size=30)


def polynomial(text: str) -> int:
    """``String.hashCode`` as its documentation has it: s[0]*31^(n-1) + ... + s[n-1], in 32 bits."""
    units = [
        int.from_bytes(unit, "little")
        for character in text
        for encoded in [character.encode("utf-16-le", "surrogatepass")]
        for unit in (encoded[i : i + 2] for i in range(0, len(encoded), 2))
    ]
    total = sum(unit * 31 ** (len(units) - 1 - place) for place, unit in enumerate(units))
    return (total + 2**31) % 2**32 - 2**31


@given(texts)
def test_a_text_s_hash_is_the_polynomial_of_its_units(text: str) -> None:
    assert java_hash(text) == polynomial(text)


@given(st.text(st.characters(max_codepoint=127), max_size=30))
def test_ascii_is_the_same_key_as_text_and_as_bytes(text: str) -> None:
    assert java_hash(text.encode()) == java_hash(text)


@given(st.one_of(texts, st.binary(max_size=30), st.integers(-(2**63), 2**63 - 1)), st.integers(1, 1000))
def test_every_key_has_a_partition(key: object, count: int) -> None:
    assert -(2**31) <= java_hash(key) < 2**31
    assert 0 <= JavaHashPartitioner().partition(key, count) < count
