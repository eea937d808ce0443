"""Tagged fields that we do not know are skipped, at every level."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidRequest
from pyspark_kafkalog.protocol.codec import specs
from tests.support.examples import examples
from tests.support.protocol.messages import CASES, Case, by_class, messages, reference_body

FLEXIBLE = [case for case in CASES if case.flexible]
FEW = examples(3, suppress_health_check=list(HealthCheck))
unknown_tags = st.dictionaries(st.integers(10, 1 << 31), st.binary(max_size=200), min_size=1, max_size=3)


@by_class(FLEXIBLE)
@FEW
@given(st.data(), unknown_tags)
def test_unknown_tagged_fields_in_every_struct_are_skipped(
    cases: list[Case], data: st.DataObject, tags: dict[int, bytes]
) -> None:
    for case in cases:
        message = data.draw(messages(case.cls, case.version))
        assert case.read(case.header_bytes + reference_body(message, case, tags)) == message


@given(st.sampled_from(FLEXIBLE), st.data())
def test_unknown_tagged_fields_in_the_header_are_skipped(case: Case, data: st.DataObject) -> None:
    message = data.draw(messages(case.cls, case.version))
    header = case.header_bytes
    if case.is_request or case.api.flexible_answer_header(case.version):
        header = header[:-1] + b"\2\x05\3abc\xac\2\0"  # two fields: 5 of three bytes, 300 of none
    assert case.read(header + reference_body(message, case)) == message


@given(st.sampled_from(FLEXIBLE), st.data())
def test_a_tagged_field_longer_than_the_message_is_refused(case: Case, data: st.DataObject) -> None:
    message = data.draw(messages(case.cls, case.version))
    body = reference_body(message, case, {99: b"abc"})
    with pytest.raises(InvalidRequest):
        case.read(case.header_bytes + body[:-4] + b"\4abc")


def test_the_tables_know_no_tag_that_these_tests_call_unknown() -> None:
    assert {spec.tag for case in CASES for _, spec in specs(case.cls)} <= {None, *range(10)}
