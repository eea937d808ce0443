"""Parts of a request that are not begun in time are refused; those before them stay as they are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalog_broker.log.generations import SINCE_08
from kafkalog_broker.metrics import Metrics
from kafkalog_broker.server.handlers.log_offsets import list_offsets
from kafkalog_broker.server.handlers.produce import produce
from kafkalog_broker.server.log_access import LONGEST_SECONDS, LogAccess
from pyspark_kafkalog.errors import ErrorCode
from pyspark_kafkalog.protocol.api.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pyspark_kafkalog.types import LATEST_TIMESTAMP
from tests.support.log.logs import TOPIC, crash_all, message_set, open_log
from tests.support.manual_clock import ManualClock
from tests.support.protocol.raw_client import produce_request


@pytest.fixture
def ctx(tmp_path: Path) -> Any:
    manager, _ = open_log(tmp_path)
    services = SimpleNamespace(
        authorizer=None,
        clock=SlowClock(),
        metrics=Metrics(),
        logs=LogAccess(manager, SINCE_08),
        fetches=SimpleNamespace(watchers={}, appended=lambda _partition, _size, stable: None),
    )
    yield SimpleNamespace(
        services=services, version=2, refused=lambda error: error.code, demand=lambda *_: None
    )
    crash_all()


class SlowClock(ManualClock):
    """A long time passes between the first part of a request and the second."""

    _asked = 0

    def monotonic(self) -> float:
        self._asked += 1
        if self._asked == 3:  # when the request began, before its first part, before its second
            self.advance(LONGEST_SECONDS + 1)
        return super().monotonic()


def test_a_partition_of_a_produce_request_that_is_not_begun_in_time_is_refused(ctx: Any) -> None:
    sets: Any = {(TOPIC, 0): message_set(b"a", magic=1)}
    request = produce_request(sets)
    (topic,) = request.topic_data
    twice = SimpleNamespace(topic_data=(topic, topic), acks=1, transactional_id=None)
    answer = produce(twice, ctx)  # type: ignore[arg-type]
    codes = [partition.error_code for each in answer.responses for partition in each.partition_responses]
    assert codes == [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]


def test_an_offset_that_is_not_looked_for_in_time_is_refused(ctx: Any) -> None:
    want = ListOffsetsPartition(partition_index=0, timestamp=LATEST_TIMESTAMP)
    request = ListOffsetsRequest(topics=(ListOffsetsTopic(name=TOPIC, partitions=(want, want)),))
    answer = list_offsets(request, ctx)
    codes = [partition.error_code for partition in answer.topics[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]
