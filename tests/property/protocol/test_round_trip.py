"""Every message in every version: written, read, and compared with a plain encoder."""

from __future__ import annotations

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.protocol.messages import Case, by_class, messages, reference_body

FEW = examples(4, suppress_health_check=list(HealthCheck))


@by_class()
@FEW
@given(st.data())
def test_what_was_written_is_read_again(cases: list[Case], data: st.DataObject) -> None:
    for case in cases:
        message = data.draw(messages(case.cls, case.version))
        frame = case.frame(message)
        assert frame == case.header_bytes + reference_body(message, case)
        assert case.read(frame) == message
