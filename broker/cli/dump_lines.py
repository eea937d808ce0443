"""What ``dump-log`` writes, a line for each thing: as Kafka's ``DumpLogSegments`` has it, or JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from broker.log.scan import Damage, FoundBatch
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.batch import control_type
from pyspark_kafkalog.formats.batch_header import CODEC_BITS, BatchHeader
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.types import Record, TimestampType

Decoder = Callable[[Record], Mapping[str, Any]]
"""What a record says, for a topic whose records are understood."""

Line = dict[str, Any]


def batch_line(found: FoundBatch) -> Line:
    """A batch, its fields in the order in which Kafka's tool names them."""
    header = found.header
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.base_timestamp if header.has_delete_horizon else None,
        "position": found.position,
        "timestampType": _time_name(header.timestamp_type),
        "baseTimestamp": header.base_timestamp,
        "maxTimestamp": header.max_timestamp,
        "size": header.size,
        "magic": 2,
        "compresscodec": codec_name(header),
        "crc": header.crc,
        "isvalid": found.sound,
    }


def damage_line(damage: Damage) -> Line:
    """A place in which no batch can be made out."""
    return {"position": damage.position, "size": damage.end - damage.position, "reason": damage.reason}


def record_line(record: Record, header: BatchHeader, decode: Decoder | None) -> Line:
    """A record; key, value and headers as ``kafkalog consume --format json`` writes them: text where they are
    UTF-8, else an object with their bytes in base64.
    """
    line: Line = {
        "offset": record.offset,
        "timestampType": _time_name(record.timestamp_type),
        "timestamp": record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": _sequence(record, header),
        "headers": [[name, _bytes(value)] for name, value in record.headers],
    }
    if header.is_control:
        try:
            line["controlType"] = control_type(record).name
        except KafkaError as e:
            line["fault"] = str(e)
    elif decode is not None:
        line |= decode(record)
    else:
        line |= {"key": _bytes(record.key), "value": _bytes(record.value)}
    return line


def as_json(kind: str, line: Line) -> str:
    """One object; ``kind`` is its first field."""
    return json.dumps({"kind": kind, **line}, ensure_ascii=False)


def as_text(kind: str, line: Line) -> str:
    """``name: value`` with blanks between; records are set off as Kafka's tool does it."""
    words = [
        f"{name}: {_word(value)}" for name, value in line.items() if value is not None or name in _NULLABLE
    ]
    prefix = {"record": "| ", "damage": "DAMAGED "}.get(kind, "")
    return prefix + " ".join(words)


_NULLABLE = ("key", "value")


def codec_name(header: BatchHeader) -> str:
    """The codec in lower case; a number where there is no such codec."""
    number = header.attributes & CODEC_BITS
    return Codec(number).name.lower() if number in list(Codec) else str(number)


def _time_name(kind: TimestampType) -> str:
    return "CreateTime" if kind is TimestampType.CREATE_TIME else "LogAppendTime"


def _sequence(record: Record, header: BatchHeader) -> int:
    if header.base_sequence < 0:
        return -1
    return (header.base_sequence + record.offset - header.base_offset) & 0x7FFF_FFFF


def _bytes(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _word(value: Any) -> str:
    """A value on one line: whatever a record holds, it cannot begin a line or steer the terminal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        return value if value.isprintable() else "".join(_visible(character) for character in value)
    if isinstance(value, dict):
        return f"base64:{value['base64']}"
    if isinstance(value, list):
        return "[" + ", ".join(f"{_word(name)}={_word(content)}" for name, content in value) + "]"
    return str(value)


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
