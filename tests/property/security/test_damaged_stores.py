"""Stores that were cut off or damaged are refused in words that name the property, or read as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.key_stores import Keys, key_and_chain, trusted
from tests.support.network.java_stores import (
    AUTHORITY_PEM,
    JKS_PASSWORD,
    KEY_PASSWORD,
    KEYS_JKS,
    KEYS_PEM,
    PASSWORD,
    TRUST_JKS,
    TRUST_PKCS12,
)

TRUST = [
    (TRUST_JKS, PASSWORD),
    (TRUST_JKS, None),
    (TRUST_PKCS12, PASSWORD),
    (AUTHORITY_PEM, None),
]
KEYS = [(KEYS_JKS, JKS_PASSWORD), (KEYS_JKS, None), (KEYS_PEM, None)]


def check_words(error: InvalidConfig) -> None:
    """One line that begins with the property."""
    assert str(error).startswith("the.store: ")
    assert "\n" not in str(error)


def open_trust(data: bytes, password: str | None) -> tuple[bytes, ...] | None:
    """None if refused."""
    try:
        return trusted(data, password, name="the.store", password_name="its.password")
    except InvalidConfig as e:
        check_words(e)
        return None


def open_keys(data: bytes, password: str | None) -> Keys | None:
    """None if refused."""
    names = {"name": "the.store", "password_name": "its.password", "key_password_name": "the.key.password"}
    try:
        return key_and_chain(data, password, KEY_PASSWORD, **names)
    except InvalidConfig as e:
        check_words(e)
        return None


@given(st.sampled_from(TRUST), st.data())
def test_a_trust_store_that_was_cut_off_is_refused(
    store: tuple[bytes, str | None], data: st.DataObject
) -> None:
    whole, password = store
    end = data.draw(st.integers(0, len(whole.rstrip()) - 1))
    assert open_trust(whole[:end], password) is None


@given(st.sampled_from(KEYS), st.data())
def test_a_key_store_that_was_cut_off_is_refused(
    store: tuple[bytes, str | None], data: st.DataObject
) -> None:
    whole, password = store
    end = data.draw(st.integers(0, len(whole.rstrip()) - 1))
    found = open_keys(whole[:end], password)
    assert found is None or found.certificates


@given(st.sampled_from([*TRUST, *KEYS]), st.data())
def test_a_flipped_byte_ends_in_words(store: tuple[bytes, str | None], data: st.DataObject) -> None:
    whole, password = store
    at = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(1, 255))
    damaged = whole[:at] + bytes([whole[at] ^ other]) + whole[at + 1 :]
    open_keys(damaged, password)
    found = open_trust(damaged, password)
    if password is not None:
        assert found in (None, open_trust(whole, password)), "a digest covers all that is in it"


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\xfe\xed\xfe\xed\0\0\0\x02", b"\x30\x82", b"-----BEGIN "]),
)
def test_any_bytes_end_in_words(data: bytes, start: bytes) -> None:
    open_keys(start + data, "p")
    open_trust(start + data, None)


@pytest.mark.parametrize("count", [0xFFFFFFFF, 0x7FFFFFFF])
def test_a_count_of_billions_costs_nothing(count: int) -> None:
    assert open_trust(TRUST_JKS[:8] + count.to_bytes(4, "big") + TRUST_JKS[12:], None) is None
