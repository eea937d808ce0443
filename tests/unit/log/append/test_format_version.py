"""``message.format.version``: a topic that holds one format, whatever its producers send."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kafkalog_broker.config.broker_config import LogConfig
from kafkalog_broker.log.append import validation
from pyspark_kafkalog.errors import ErrorCode, KafkaError, MessageTooLarge
from pyspark_kafkalog.formats.batch import encode_batch, magic_at, read_header
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import CODECS
from pyspark_kafkalog.formats.message_set import frames
from pyspark_kafkalog.types import NewRecord, TimestampType
from tests.support.log.logs import START_MS, batch, contents, message_set, open_log, read_all

VERSIONS = ("0.9.0", "0.10.2", "2.0")
TIMES = [START_MS, START_MS + 7, START_MS + 3]


def sent(magic: int, codec: Codec) -> bytearray:
    if magic == 2:
        return batch(b"a", b"b", b"c", codec=codec, timestamps=TIMES)
    return message_set(b"a", b"b", b"c", magic=magic, codec=codec, timestamps=TIMES)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("came", [0, 1, 2])
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_produced_records_are_converted_to_the_topics_format(
    tmp_path: Path, came: int, kept: int, codec: Codec
) -> None:
    _, log = open_log(tmp_path, message_format_version=VERSIONS[kept])
    log.append(sent(kept, Codec.NONE))
    result = log.append(sent(came, codec))
    assert (result.base_offset, result.last_offset, result.record_count) == (3, 5, 3)
    converted = 3 if came != kept or (kept == 0 and codec) else 0
    assert result.converted_count == converted
    data = contents(log.read(3, 1 << 20, at_least_one=True))
    assert result.converted_bytes == (len(data) if converted else 0)
    assert {magic_at(data, frame.position) for frame in frames(data)} == {kept}
    times = TIMES if came and kept else [-1] * 3
    assert [(r.offset, r.timestamp, r.value) for r in read_all(log, start=3)] == [
        (3 + n, time, value) for n, (time, value) in enumerate(zip(times, [b"a", b"b", b"c"], strict=True))
    ]


@pytest.mark.parametrize("came", [0, 1, 2])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_log_sets_the_time_of_what_it_converts(tmp_path: Path, version: str, came: int) -> None:
    _, log = open_log(tmp_path, message_format_version=version, message_timestamp_type="LogAppendTime")
    log.append(sent(came, Codec.GZIP))
    want = (
        (-1, TimestampType.CREATE_TIME) if version == "0.9.0" else (START_MS, TimestampType.LOG_APPEND_TIME)
    )
    assert {(r.timestamp, r.timestamp_type) for r in read_all(log)} == {want}


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0),
         ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (bytearray(encode_batch([NewRecord(b"a", None, START_MS, (("name", b"x"),))])),
         ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch(b"a", codec=Codec.ZSTD), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
    ids=["idempotent", "headers", "zstd"],
)  # fmt: skip
@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_format_cannot_say_is_refused(
    tmp_path: Path, version: str, data: bytearray, code: ErrorCode
) -> None:
    _, log = open_log(tmp_path, message_format_version=version)
    if version == "2.0":
        assert log.append(bytearray(data)).converted_count == 0
        return
    with pytest.raises(KafkaError) as refused:
        log.append(bytearray(data))
    assert refused.value.code == code
    assert (log.end_offset, log.size_bytes) == (0, 0)


def test_what_becomes_larger_than_is_allowed_is_refused(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, message_format_version="0.9.0")
    data = batch(*(b"" for _ in range(400)), codec=Codec.GZIP)
    log.config = log.config.overridden({"max.message.bytes": str(len(data))})
    with pytest.raises(MessageTooLarge):
        log.append(data)
    assert log.end_offset == 0


def test_a_large_set_of_plain_messages_becomes_batches_within_the_limit(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, message_format_version="2.0", max_message_bytes=1000)
    texts = [b"%d" % n * 50 for n in range(40)]
    log.append(message_set(*texts, magic=1))
    data = contents(log.read(0, 1 << 20, at_least_one=True))
    assert 1 < len(list(frames(data))) < 20
    assert all(frame.size <= 1000 for frame in frames(data))
    assert [(r.offset, r.value) for r in read_all(log)] == list(enumerate(texts))


def test_the_brokers_own_records_stay_as_they_are(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, message_format_version="0.9.0")
    assert log.append(batch(b"ours"), internal=True).converted_count == 0
    assert read_header(contents(log.read(0, 1000, at_least_one=True))).record_count == 1


def test_a_topic_without_times_is_not_searched_by_time(tmp_path: Path) -> None:
    _, log = open_log(tmp_path, message_format_version="0.8.2")
    log.append(batch(b"a"))
    for look_up in (partial(log.offset_for_timestamp, START_MS), log.max_timestamp):
        with pytest.raises(KafkaError, match=r"no time with message\.format\.version=0\.8\.2") as refused:
            look_up()
        assert refused.value.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_a_topic_that_changes_its_format_keeps_what_it_has(tmp_path: Path) -> None:
    manager, log = open_log(tmp_path)
    for version in (*VERSIONS, "producer"):
        manager.set_overrides("my_topic", {"message.format.version": version})
        log.append(sent(1, Codec.GZIP))
    data = contents(log.read(0, 1 << 20, at_least_one=True))
    assert [magic_at(data, frame.position) for frame in frames(data)] == [0, 1, 2, 1]
    assert [r.value for r in read_all(log)] == [b"a", b"b", b"c"] * 4


@pytest.mark.parametrize("came", [0, 1])
def test_a_log_of_message_sets_goes_on_with_record_batches_by_default(tmp_path: Path, came: int) -> None:
    manager, log = open_log(tmp_path)
    log.append(sent(came, Codec.NONE))
    manager.close()
    _, log = open_log(tmp_path, message_format_version=LogConfig().message_format_version)
    log.append(sent(came, Codec.NONE))
    data = contents(log.read(0, 1 << 20, at_least_one=True))
    assert [magic_at(data, frame.position) for frame in frames(data)] == [came, came, came, 2]
    assert [r.timestamp for r in read_all(log)] == (TIMES if came else [-1] * 3) * 2


def test_no_more_records_are_converted_than_messages_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "MOST_MESSAGES", 10)
    _, log = open_log(tmp_path, message_format_version="0.9.0")
    assert log.append(batch(*[b"a"] * 10, codec=Codec.GZIP)).converted_count == 10
    with pytest.raises(MessageTooLarge, match="more than 10 messages"):
        log.append(batch(*[b"a"] * 11, codec=Codec.GZIP))
    assert log.end_offset == 10
