"""The generated readers accept, refuse and return what the tables say, step by step."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidRequest, KafkaError
from pyspark_kafkalog.protocol.codec import codec
from tests.support.examples import examples
from tests.support.protocol.messages import Case, by_class, messages, reference_body
from tests.support.protocol.table_reader import TableReader


def generated(case: Case, data: bytes) -> Any:
    try:
        return codec(case.cls, case.version, case.flexible).read(memoryview(data), 0)
    except InvalidRequest:
        return "refused"


def by_the_tables(case: Case, data: bytes) -> Any:
    oracle = TableReader(data, case.version, case.flexible)
    try:
        message = oracle.message(case.cls)
    except (KafkaError, UnicodeDecodeError):
        return "refused"
    return message if oracle.position == len(data) else "refused"


@by_class()
@examples(10, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_changed_messages_are_read_as_the_tables_say(cases: list[Case], data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(cases))
    message = data.draw(messages(case.cls, case.version))
    body = reference_body(message, case)
    assert generated(case, body) == by_the_tables(case, body) == message
    for _ in range(10 if body else 0):
        place = data.draw(st.integers(0, len(body) - 1))
        assert generated(case, body[:place]) == by_the_tables(case, body[:place])
        byte = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)))
        changed = body[:place] + bytes([byte]) + body[place + 1 :]
        assert generated(case, changed) == by_the_tables(case, changed)
