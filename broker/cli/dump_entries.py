"""The lines that ``dump-log`` has for the entries of each generation, and for what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from broker.cli.dump_lines import Decoder, Line, bytes_value
from broker.log.filesystem import File
from broker.log.generations import SINCE_08, V07
from broker.log.salvage import Found
from broker.log.scan import FoundBatch, FoundEntry, FoundSet
from broker.log.scan07 import FoundEntry as FoundEntry07
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.batch import CODEC_BITS, BatchHeader, control_type
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import EntryHeader
from pyspark_kafkalog.types import Record, TimestampType

F = TypeVar("F", bound=Found)

_NO_TIME = "NoTimestampType"
"""What Kafka's tool says of entries and messages of v0."""


@dataclass(frozen=True, slots=True)
class EntryLines(Generic[F]):
    """*Thread-safe: it never changes.* What is said of the entries of one family of logs."""

    kind: str
    """What such an entry is called."""
    entry: Callable[[F], Line]
    record_kind: str
    records: Callable[[F, File, Decoder | None], Iterator[Line]]
    """What is in an entry, whatever its checksum is. Raises `KafkaError` where that cannot be made out, and
    `OSError`.
    """


def batch_line(found: FoundEntry) -> Line:
    """A batch, its fields in the order in which Kafka's tool names them; of v0 and v1 those that it has."""
    header = found.header
    if isinstance(header, EntryHeader):
        return {
            "offset": header.offset,
            "position": found.position,
            "timestampType": _time_name(header.timestamp_type) if header.magic else _NO_TIME,
            "maxTimestamp": header.timestamp,
            "size": header.size,
            "magic": header.magic,
            "compresscodec": codec_name(header),
            "crc": header.crc,
            "isvalid": found.sound,
        }
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


def entry_line(found: FoundEntry07) -> Line:
    """An entry of 0.7, with the words of its ``DumpLogSegments`` where that has any."""
    return {
        "offset": found.first_offset,
        "nextOffset": found.next_offset,
        "position": found.position,
        "size": found.size,
        "payloadsize": found.payload_size,
        "magic": found.magic,
        "compresscodec": found.codec.name.lower(),
        "crc": found.stored_crc,
        "isvalid": found.sound,
    }


def _batch_records(found: FoundEntry, file: File, decode: Decoder | None) -> Iterator[Line]:
    header = found.header if isinstance(found, FoundBatch) else None
    timeless = isinstance(found, FoundSet) and not found.header.magic
    for record in found.records(file):
        line = record_line(record, header, decode)
        yield line | {"timestampType": _NO_TIME} if timeless else line


def _messages(found: FoundEntry07, file: File, _decode: Decoder | None) -> Iterator[Line]:
    for payload, next_offset in found.messages(file):
        yield {
            "offset": found.first_offset,
            "nextOffset": next_offset,
            "valueSize": len(payload),
            "value": bytes_value(bytes(payload)),
        }


def record_line(record: Record, header: BatchHeader | None, decode: Decoder | None) -> Line:
    """A record, with the header of its batch where it is of v2; key, value and headers as ``kafkalog consume
    --format json`` writes them: text where they are UTF-8, else an object with their bytes in base64.
    """
    line: Line = {
        "offset": record.offset,
        "timestampType": _time_name(record.timestamp_type),
        "timestamp": record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": _sequence(record, header),
        "headers": [[name, bytes_value(value)] for name, value in record.headers],
    }
    if header is not None and header.is_control:
        try:
            line["controlType"] = control_type(record).name
        except KafkaError as e:
            line["fault"] = str(e)
    elif decode is not None:
        line |= decode(record)
    else:
        line |= {"key": bytes_value(record.key), "value": bytes_value(record.value)}
    return line


def codec_name(header: BatchHeader | EntryHeader) -> str:
    """The codec in lower case; a number where there is no such codec."""
    number = header.attributes & CODEC_BITS
    return Codec(number).name.lower() if number in list(Codec) else str(number)


def _time_name(kind: TimestampType) -> str:
    return "CreateTime" if kind is TimestampType.CREATE_TIME else "LogAppendTime"


def _sequence(record: Record, header: BatchHeader | None) -> int:
    if header is None or header.base_sequence < 0:
        return -1
    return (header.base_sequence + record.offset - header.base_offset) & 0x7FFF_FFFF


ENTRY_LINES: Mapping[str, EntryLines[Any]] = MappingProxyType(
    {
        SINCE_08.generation: EntryLines("batch", batch_line, "record", _batch_records),
        V07.generation: EntryLines("entry", entry_line, "message", _messages),
    }
)
"""By the name of the family."""
