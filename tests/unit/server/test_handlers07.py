"""The handlers of 0.7's requests, without a socket: what their answers are made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalog_broker.config.broker_config import BrokerConfig
from kafkalog_broker.log.file_slice import FileSlice
from kafkalog_broker.log.generations import V07
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.server.handlers07 import LONGEST_ANSWER_BYTES, fetch, multi_fetch, multi_produce
from kafkalog_broker.server.log_access import LONGEST_SECONDS, LogAccess
from kafkalog_broker.server.request_limits import COSTLY_ELEMENTS
from kafkalog_broker.server.topics import Topics
from pyspark_kafkalog.errors import ErrorCode, InvalidRequest, ServerError
from pyspark_kafkalog.protocol.v07 import (
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    ProduceRequest,
    encode_response,
)
from pyspark_kafkalog.types import TopicPartition
from tests.support.log.logs import TOPIC, crash_all, open_log
from tests.support.manual_clock import ManualClock
from tests.support.protocol.wire07 import entry

ONE = entry(b"one")


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Any]:
    manager, log = open_log(tmp_path, generation="0.7", flush_messages=1)
    log.append(ONE)
    config = BrokerConfig()
    yield SimpleNamespace(
        config=config,
        clock=ManualClock(),
        metrics=Metrics(),
        logs=LogAccess(manager, V07),
        topics=Topics(manager, config),
    )
    crash_all()


def test_messages_go_out_as_regions_of_the_file_and_are_not_read(services: Any) -> None:
    want = FetchRequest(TOPIC, 0, 0, 100)
    for parts, regions in (
        (encode_response(fetch(want, services)), 1),
        (encode_response(multi_fetch(MultiFetchRequest((want, want, want)), services)), 3),
    ):
        slices = [part for part in parts if isinstance(part, FileSlice)]
        assert [piece.read() for piece in slices] == [ONE] * regions
        for piece in slices:
            piece.close()


def test_an_answer_to_many_fetches_is_cut_where_its_size_would_not_fit(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LONGEST_ANSWER_BYTES == 2**31 - 1
    want = FetchRequest(TOPIC, 0, 0, 100)
    room = 2 + 3 * 6 + len(ONE) + 5
    monkeypatch.setattr("kafkalog_broker.server.handlers07.LONGEST_ANSWER_BYTES", room)
    answer = multi_fetch(MultiFetchRequest((want, want, want)), services)
    assert [len(part.messages) for part in answer.responses] == [len(ONE), 5, 0]
    assert {part.error_code for part in answer.responses} == {ErrorCode.NONE}


def test_an_answer_with_more_parts_than_files_begins_anywhere(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services.logs.logs.open_files, "max_open", 2)
    want = FetchRequest(TOPIC, 0, 0, 100)
    seen = set()
    for _ in range(100):
        answer = multi_fetch(MultiFetchRequest((want, want, want)), services)
        came = [number for number, part in enumerate(answer.responses) if len(part.messages)]
        assert len(came) == 1
        seen.update(came)
        for part in answer.responses:
            part.messages.close()  # type: ignore[union-attr]
    assert seen == {0, 1, 2}


def test_a_request_for_very_many_new_topics_makes_none(services: Any) -> None:
    produces = tuple(ProduceRequest(f"t{number}", 0, b"") for number in range(COSTLY_ELEMENTS + 1))
    with pytest.raises(
        InvalidRequest, match=f"{COSTLY_ELEMENTS + 1} new topics; the limit is {COSTLY_ELEMENTS}"
    ):
        multi_produce(MultiProduceRequest(produces), services)
    assert set(services.topics.all()) == {TOPIC}


def test_parts_of_a_request_that_takes_too_long_are_not_begun(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = services.logs.log(TopicPartition(TOPIC, 0))
    before = log.end_offset
    part = ProduceRequest(TOPIC, 0, memoryview(bytearray(ONE)))
    append = log.append

    def append_slowly(*args: Any, **options: Any) -> Any:
        if log.end_offset == before + len(ONE):
            services.clock.advance(LONGEST_SECONDS + 1)
        return append(*args, **options)

    monkeypatch.setattr(log, "append", append_slowly)
    with pytest.raises(ServerError, match="not begun within 60 s") as caught:
        multi_produce(MultiProduceRequest((part, part, part)), services)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert log.end_offset == before + 2 * len(ONE)
