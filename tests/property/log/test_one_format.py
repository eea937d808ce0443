"""Whatever comes in which order, a topic of one format holds that alone, and everything that was sent."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.formats.batch import magic_at
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import CODECS
from pyspark_kafkalog.formats.message_set import frames
from tests.support.examples import examples
from tests.support.log.logs import START_MS, batch, contents, crash, message_set, open_log, read_all

VERSIONS = ("0.8.2", "0.10.0", "0.11.0")
TIMES = st.lists(st.integers(0, 60), min_size=1, max_size=5)
SENT = st.lists(st.tuples(st.integers(0, 2), TIMES, st.sampled_from(CODECS)), min_size=1, max_size=8)


@examples(80)
@given(st.integers(0, 2), SENT, st.booleans())
def test_a_topic_of_one_format_holds_all_that_came_in_it(
    magic: int, sent: list[tuple[int, list[int], Codec]], restart: bool
) -> None:
    path = Path(tempfile.mkdtemp())
    try:
        manager, log = open_log(path, message_format_version=VERSIONS[magic], segment_bytes=600)
        wanted: list[tuple[int, int, bytes]] = []
        for came, times, codec in sent:
            stamps = [START_MS + ms for ms in times]
            texts = [b"%d" % (len(wanted) + n) for n in range(len(times))]
            if came == 2:
                data = batch(*texts, timestamps=stamps, codec=codec)
            else:
                data = message_set(*texts, magic=came, timestamps=stamps, codec=codec)
            assert log.append(data).base_offset == len(wanted)
            for text, stamp in zip(texts, stamps, strict=True):
                wanted.append((len(wanted), stamp if came and magic else -1, text))
        if restart:
            crash(manager)
            manager, log = open_log(path, message_format_version=VERSIONS[magic], segment_bytes=600)
        assert [(r.offset, r.timestamp, r.value) for r in read_all(log, max_bytes=200)] == wanted
        offset = 0
        while offset < log.end_offset:
            data = bytearray(contents(log.read(offset, 1 << 20, at_least_one=True)))
            walked = list(frames(data))
            assert {magic_at(data, frame.position) for frame in walked} == {magic}
            offset = walked[-1].next_offset
        for stamp in (START_MS, START_MS + 30) if magic else ():
            first = next(((time, at) for at, time, _ in wanted if time >= stamp), None)
            assert log.offset_for_timestamp(stamp) == first
        crash(manager)
    finally:
        shutil.rmtree(path)
