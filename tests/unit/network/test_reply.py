"""A reply is given once, from any thread; a vanished peer only frees what was to be sent."""

from __future__ import annotations

import logging
import threading

import pytest

from kafkalog_broker.network.reply import Outcome, Reply
from tests.support.network.sockets import FakeRegion


class Owner:
    def __init__(self) -> None:
        self.reply_lock = threading.Lock()
        self.settled_replies: list[Reply] = []

    def settled(self, reply: Reply) -> None:
        assert not self.reply_lock.locked()
        self.settled_replies.append(reply)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def reply(owner: Owner) -> Reply:
    return Reply(owner, object(), "127.0.0.1:5000")


def test_an_answer_settles_it(owner: Owner, reply: Reply) -> None:
    reply.send([b"abc", b"de"])
    assert reply.outcome is Outcome.ANSWER
    assert reply.parts == [b"abc", b"de"]
    assert owner.settled_replies == [reply]


def test_no_answer_and_close_settle_it_without_bytes(owner: Owner) -> None:
    first, second = Reply(owner, 1, "a"), Reply(owner, 2, "b")
    first.no_answer()
    second.close()
    assert [first.outcome, second.outcome] == [Outcome.NO_ANSWER, Outcome.CLOSE]
    assert first.parts is second.parts is None
    assert owner.settled_replies == [first, second]


@pytest.mark.parametrize("again", ["send", "no_answer", "close"])
def test_a_second_answer_is_an_error_and_frees_its_regions(owner: Owner, reply: Reply, again: str) -> None:
    reply.send([b"x"])
    region = FakeRegion(b"data")
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:5000 is answered already"):
        reply.send([region]) if again == "send" else getattr(reply, again)()
    assert region.closed_count == (again == "send")
    assert owner.settled_replies == [reply]


def test_an_answer_that_the_handler_returned_is_the_only_one(reply: Reply) -> None:
    reply.returned([b"abc"])
    assert (reply.outcome, reply.parts) == (Outcome.ANSWER, [b"abc"])
    region = FakeRegion(b"data")
    with pytest.raises(RuntimeError, match="answered already"):
        reply.returned([region])
    assert region.closed_count == 1
    with pytest.raises(RuntimeError, match="answered already"):
        reply.no_answer()


def test_after_the_peer_is_gone_an_answer_only_frees_its_regions(owner: Owner, reply: Reply) -> None:
    reply.peer_gone()
    assert reply.closed
    region = FakeRegion(b"data")
    reply.send([b"head", region])
    assert region.closed_count == 1
    assert owner.settled_replies == []


def test_on_close_is_called_once_when_the_peer_goes(reply: Reply) -> None:
    calls: list[str] = []
    reply.on_close(lambda: calls.append("gone"))
    assert calls == []
    reply.peer_gone()
    reply.peer_gone()
    assert calls == ["gone"]


def test_on_close_is_called_at_once_when_the_peer_is_gone_already(reply: Reply) -> None:
    reply.peer_gone()
    calls: list[str] = []
    reply.on_close(lambda: calls.append("gone"))
    assert calls == ["gone"]


def test_on_close_is_forgotten_once_the_answer_is_given(reply: Reply) -> None:
    calls: list[str] = []
    reply.on_close(lambda: calls.append("early"))
    reply.send([b"x"])
    reply.on_close(lambda: calls.append("late"))
    reply.peer_gone()
    assert calls == []


def test_a_failing_on_close_is_logged_and_goes_no_further(
    reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("no")

    reply.on_close(fail)
    with caplog.at_level(logging.ERROR):
        reply.peer_gone()
    assert "on_close of a request from 127.0.0.1:5000 failed" in caplog.text


def test_of_many_threads_that_answer_one_wins(owner: Owner, reply: Reply) -> None:
    barrier, errors = threading.Barrier(8), []

    def answer() -> None:
        barrier.wait()
        try:
            reply.send([b"x"])
        except RuntimeError as e:
            errors.append(e)

    threads = [threading.Thread(target=answer) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(errors) == 7
    assert owner.settled_replies == [reply]
