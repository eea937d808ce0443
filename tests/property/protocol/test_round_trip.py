"""Every message in every version: written, read, and compared with a plain encoder."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.protocol.messages import CASES, Case, messages, reference_body

FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("case", CASES, ids=str)
@FEW
@given(st.data())
def test_what_was_written_is_read_again(case: Case, data: st.DataObject) -> None:
    message = data.draw(messages(case.cls, case.version))
    frame = case.frame(message)
    assert frame == case.header_bytes + reference_body(message, case)
    assert case.read(frame) == message
