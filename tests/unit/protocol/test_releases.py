"""The table of what old releases speak."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pyspark_kafkalog.protocol.exchange import APIS, RELEASES, ApiKey, message_magic, release_of


@pytest.mark.parametrize("release", RELEASES)
def test_our_tables_hold_all_that_a_release_speaks(release: str) -> None:
    for key, (low, high) in RELEASES[release].items():
        assert low in APIS[key].versions
        assert high in APIS[key].versions


def test_a_release_speaks_what_the_one_before_it_did() -> None:
    for earlier, later in pairwise(RELEASES.values()):
        assert earlier.keys() <= later.keys()
        assert all(earlier[key].max <= later[key].max for key in earlier)


def test_the_releases_are_those_of_apache_kafka() -> None:
    # As the newest version of each; RequestKeys.scala and Protocol.java of the releases.
    asked = (
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
    )
    newest = {
        release: [spoken[key].max if key in spoken else None for key in asked]
        for release, spoken in RELEASES.items()
    }
    assert newest == {
        "0.8.0": [0, 0, 0, 0, None, None],
        "0.8.1": [0, 0, 0, 0, 0, 0],
        "0.8.2": [0, 0, 0, 0, 1, 1],
        "0.9.0": [1, 1, 0, 0, 2, 1],
        "0.10.0": [2, 2, 0, 1, 2, 1],
        "0.10.1": [2, 3, 1, 2, 2, 1],
        "0.10.2": [2, 3, 1, 2, 2, 2],
    }


def test_a_release_has_a_message_format() -> None:
    assert [message_magic(release) for release in RELEASES] == [0, 0, 0, 0, 1, 1, 1]


def test_a_patch_is_of_its_release() -> None:
    assert release_of("0.8.2.2") == release_of("0.8.2") == "0.8.2"
    assert release_of("0.8.2.2.2") is release_of("2.0.0") is release_of("") is None
