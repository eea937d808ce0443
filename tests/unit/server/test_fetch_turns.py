from __future__ import annotations

from kafkalog_broker.server.delayed_fetch import FetchTurns
from pyspark_kafkalog.types import TopicPartition

A, B = TopicPartition("t", 3), TopicPartition("t", 4)


def test_a_client_continues_where_its_last_answer_had_no_room() -> None:
    turns = FetchTurns()
    turns.note("one:1", A)
    turns.note("two:2", B)
    assert (turns.places.get("one:1"), turns.places.get("two:2"), turns.places.get("three:3")) == (A, B, None)
    turns.note("one:1", B)
    assert turns.places.get("one:1") == B
    turns.note("one:1", None)
    assert turns.places.get("one:1") is None


def test_the_places_kept_are_bounded() -> None:
    turns = FetchTurns(max_clients=2)
    for peer in ("one", "two", "one", "three"):
        turns.note(peer, A)
    assert [turns.places.get(peer) for peer in ("one", "two", "three")] == [A, None, A]
