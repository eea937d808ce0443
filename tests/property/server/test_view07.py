"""Whatever a 0.7 log holds, and however a reader asks: it gets every message from its position on, once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import assume, given
from hypothesis import strategies as st

from kafkalog_broker.metrics import Metrics
from kafkalog_broker.server.log_access import Allowance
from kafkalog_broker.server.view07 import View07
from pyspark_kafkalog.errors import InvalidRecord
from pyspark_kafkalog.formats.batch import read_header
from pyspark_kafkalog.formats.convert import batch_of_entry
from pyspark_kafkalog.formats.message_set import frames, records
from pyspark_kafkalog.formats.v07 import entries
from tests.support.examples import examples
from tests.support.formats.captures_07 import MAX_BYTES, message_sets
from tests.support.log.logs import crash_all, open_log


def all_records(data: bytes) -> list[tuple[int, bytes | None]]:
    found = []
    for each in entries(data):
        try:
            batch = batch_of_entry(data[each.position : each.end], each.offset, max_bytes=MAX_BYTES).batch
        except InvalidRecord:
            assume(False)
        found += [(r.offset, r.value) for r in records(batch, start_offset=0, max_bytes=MAX_BYTES)]
    return found


@examples(40)
@given(st.lists(message_sets, min_size=1, max_size=6), st.integers(14, 4000), st.data())
def test_a_reader_that_follows_the_batches_gets_every_message_once(
    sets: list[bytes], segment_bytes: int, draw: st.DataObject
) -> None:
    data = b"".join(sets)
    expected = all_records(data)
    with tempfile.TemporaryDirectory() as directory:
        try:
            log = open_log(Path(directory), generation="0.7", segment_bytes=segment_bytes)[1]
            for each in sets:
                log.append(each)
            log.flush()
            view = View07(Metrics())
            for _ in range(3):
                start = position = draw.draw(st.integers(0, len(data)))
                max_bytes = draw.draw(st.integers(0, 5000))
                found = []
                while position < len(data):
                    allowance = Allowance(draw.draw(st.integers(1, 20_000)))
                    steps = view(log, allowance).read(position, max_bytes, at_least_one=True)
                    batches = steps.read()
                    assert batches or allowance.spent
                    for frame in frames(memoryview(batches)):
                        assert read_header(batches, frame.position).base_offset <= position
                        new = records(
                            memoryview(batches)[frame.position : frame.end],
                            start_offset=position,
                            max_bytes=MAX_BYTES,
                        )
                        found += [(record.offset, record.value) for record in new]
                        position = frame.next_offset
                assert found == [record for record in expected if record[0] >= start]
        finally:
            crash_all()
