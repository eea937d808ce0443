from __future__ import annotations

from kafkalog_broker.log.file_slice import KnownFormats


def test_of_a_segment_that_was_begun_in_this_run_all_is_known() -> None:
    formats = KnownFormats(0)
    assert formats.newest_before(0) == 0
    found = []
    for magic in (0, 1, 0, 2, 1):
        formats.appended(magic)
        found.append(formats.newest_before(100))
    assert found == [0, 1, 1, 2, 2]


def test_of_an_older_one_is_known_what_was_walked_over_from_its_beginning_on() -> None:
    formats = KnownFormats(1000)
    assert formats.newest_before(10) is None
    formats.learn(1, 500, 600)
    assert formats.newest_before(10) is None  # not from the beginning on
    formats.learn(1, 0, 300)
    formats.learn(1, 200, 400)
    assert [formats.newest_before(end) for end in (300, 400, 401)] == [1, 1, None]
    formats.learn(0, 0, 100)
    assert [formats.newest_before(end) for end in (100, 101)] == [0, 1]
    formats.appended(0)
    formats.learn(2, 0, 1000)  # says nothing
    assert formats.newest_before(1000) is None


def test_what_is_known_is_not_forgotten_by_a_shorter_walk() -> None:
    formats = KnownFormats(1000)
    formats.learn(1, 0, 300)
    formats.learn(1, 0, 100)
    assert formats.newest_before(300) == 1
