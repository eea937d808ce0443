"""How often the interpreter of a broker looks through what stays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from kafkalog_broker.server.broker import look_through_once
from tests.support.manual_clock import ManualClock


class Node:
    """In a cycle with itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    clock = ManualClock()
    looks = look_through_once(clock)
    yield clock
    gc.callbacks.remove(looks)
    gc.unfreeze()


@pytest.mark.long("looks through all objects of the process")
def test_what_stayed_is_looked_through_again_after_an_hour(clock: ManualClock) -> None:
    stayed = Node()
    gone = weakref.ref(stayed)
    gc.collect()
    assert gc.get_freeze_count() > 0
    del stayed
    clock.advance(3599)
    gc.collect()
    assert gone() is not None
    clock.advance(1)
    gc.collect()
    assert gone() is None


def test_what_did_not_stay_is_found_at_once(clock: ManualClock) -> None:
    gc.collect()
    gone = weakref.ref(Node())
    gc.collect()
    assert gone() is None
