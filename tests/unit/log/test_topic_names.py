"""Names of topics as names of files."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog_broker.log.generations import check_first_name, check_name, file_name, topic_of_file
from kafkalog_broker.logs.topic_store import directory_name, partition_of
from pyspark_kafkalog.errors import InvalidTopic
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.logs import contents, open_manager
from tests.support.protocol.wire07 import entry

_ID = UUID(int=7)


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True))
def test_a_name_of_later_kafkas_is_that_of_its_file(name: str) -> None:
    assert file_name(name) == name
    assert topic_of_file(name) == name


@given(st.text(min_size=1, max_size=60).filter(lambda name: "/" not in name and "\0" not in name))
def test_every_name_has_a_file_of_its_own_in_ascii(name: str) -> None:
    try:
        check_first_name(name)
    except InvalidTopic:
        return
    stem = file_name(name)
    assert topic_of_file(stem) == name
    assert stem.isascii()
    assert not set(stem) & set("~ /")
    assert partition_of(directory_name(TopicPartition(name, 7))) == TopicPartition(name, 7)


@pytest.mark.parametrize("name", ["%41_0", "%zz_0", "a~_0", "t\u00e9_0", "_0", "a_01", "a_-1", "a"])
def test_no_partition_has_such_a_directory(name: str) -> None:
    assert partition_of(name) is None


@pytest.mark.parametrize("name", ["té", "a b", "a:b", "~", ".deleted~1", "日本語", "a%b", "x" * 249])
def test_a_topic_of_07_with_any_name_comes_back_after_a_restart(tmp_path: Path, name: str) -> None:
    manager = open_manager(tmp_path, flush_messages=1)
    manager.create_topic(name, _ID, 1, generation="0.7")
    manager.log(TopicPartition(name, 0)).append(entry(b"x"))
    manager.close()
    manager = open_manager(tmp_path)
    log = manager.log(TopicPartition(name, 0))
    assert contents(log.read(0, 100, at_least_one=False)) == entry(b"x")
    manager.delete_topic(name)
    manager.close()
    assert open_manager(tmp_path).topics == {}


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\x07", "\x85", "\ue000", "\ufffd", "x" * 256, "é" * 42]
)
def test_these_names_no_topic_of_07_has(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_first_name(name)


def test_a_dot_and_a_bar_are_one_character_for_later_topics_only() -> None:
    with pytest.raises(InvalidTopic, match=r"'a\.b' collides with 'a_b'"):
        check_name("a.b", ["a_b"])
    check_first_name("a.b", ["a_b"])
