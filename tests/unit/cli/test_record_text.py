from __future__ import annotations

import pytest

from pyspark_kafkalog.cli.record_text import Draft, from_json, to_json
from pyspark_kafkalog.types import Record, TimestampType, TopicPartition


def test_a_record_is_a_line_that_people_can_read() -> None:
    headers = (("h", b"1"), ("h", None), ("b", b"\xff"))
    record = Record(7, 8, 1_700_000_000_000, TimestampType.CREATE_TIME, "Zoë".encode(), b"\x00\xff", headers)
    assert to_json(TopicPartition("t", 3), record) == (
        '{"topic": "t", "partition": 3, "offset": 7, "timestamp": 1700000000000, "key": "Zoë", '
        '"value": {"base64": "AP8="}, "headers": [["h", "1"], ["h", null], ["b", {"base64": "/w=="}]]}'
    )


def test_only_a_value_is_needed_and_headers_may_be_an_object() -> None:
    assert from_json(b'{"value": null}') == Draft(None, None, None, None, [])
    assert from_json(b'{"value": "", "headers": {"a": "1", "b": null}}').headers == [("a", b"1"), ("b", None)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"value": ', "not JSON: Expecting value at column 11"),
        (b'{"value": "\xff"}', "not UTF-8: invalid start byte at byte 11"),
        ("[" * 100_000, "nested too deeply"),
        ("7", "expected a JSON object, not 7"),
        ('{"key": "k"}', '"value" is missing; write null for a record without a value'),
        (
            '{"value": "v", "Key": "k"}',
            "unknown field 'Key'; allowed: headers, key, partition, timestamp, value",
        ),
        ('{"value": {"a": 1}}', 'value is {"a": 1}; allowed: text, null, {"base64": "..."}'),
        ('{"value": {"base64": "A?=="}}', "value is not base64"),
        ('{"value": "\\ud800"}', "value has a lone surrogate"),
        ('{"value": "v", "partition": -1}', "partition is -1; allowed: null, 0 to 2147483647"),
        ('{"value": "v", "partition": true}', "partition is true"),
        (
            '{"value": "v", "timestamp": "now"}',
            'timestamp is "now"; allowed: null, -9223372036854775808 to 92',
        ),
        ('{"value": "v", "headers": "h"}', 'headers are "h"; allowed: a list of [name, value], or an object'),
        ('{"value": "v", "headers": [["h"]]}', 'a header is ["h"]; allowed: [name, value]'),
        ('{"value": "v", "headers": [["h", 1]]}', "header 'h' is 1; allowed: text"),
        (f'{{"value": {"[" * 60}{"]" * 60}}}', f"value is {'[' * 37}...; allowed"),
    ],
)
def test_an_invalid_record_is_refused_with_the_reason(line: str | bytes, why: str) -> None:
    with pytest.raises(ValueError) as raised:
        from_json(line.encode() if isinstance(line, str) else line)
    assert why in str(raised.value)
