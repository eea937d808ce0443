"""Dumps segments and indexes, including damaged places, as text or JSON lines."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from kafkalog_broker.disk.filesystem import File, FileSystem, read_file
from kafkalog_broker.inspect.inspection import (
    INDEX_SUFFIXES,
    OpenSegment,
    SegmentPlace,
    inspection_of,
    kind_of,
    partitions_in,
    segments_in,
)
from kafkalog_broker.log.aborted_transactions import ABORTED_SUFFIX, AbortedTransaction, parse_aborted
from kafkalog_broker.log.generations import SINCE_08, V07
from kafkalog_broker.log.offset_scheme import OFFSET_COLUMNS, TIME_COLUMNS, parse_index
from kafkalog_broker.log.scan import FoundBatch, FoundEntry, FoundEntry07, FoundSet
from kafkalog_broker.log.walk import CandidateEntry, Damage
from kafkalog_broker.logs.offset_records import decode_key, decode_value
from pyspark_kafkalog.errors import CorruptMessage, KafkaError
from pyspark_kafkalog.formats.batch import CODEC_BITS, BatchHeader, control_type
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.formats.legacy import EntryHeader
from pyspark_kafkalog.types import Record, TimestampType


def files_of(place: Path, index: bool, files: FileSystem) -> list[Path]:
    """Files to dump at ``place``, in order. Raises `InvalidConfig`: none."""
    kind = kind_of(place, files)
    if kind == "index":
        return [place]
    if kind == "segment":
        segments = [place]
    else:
        partitions = [place] if kind == "partition" else [found.path for found in partitions_in(place, files)]
        segments = [segment.path for path in partitions for segment in segments_in(path, files)]
    if not index:
        return segments
    beside = [segment.with_suffix(suffix) for segment in segments for suffix in INDEX_SUFFIXES]
    return [path for path in beside if path.exists()]


class Dump:
    """*Not thread-safe.* Writes the lines, and remembers whether any showed damage."""

    def __init__(
        self,
        files: FileSystem,
        write: Callable[[str], object],
        *,
        json: bool,
        records: bool,
        offsets_decoder: bool,
        generation: str,
    ) -> None:
        """``write`` gets each line without line end. For the rest see the options of ``dump-log``."""
        self.damaged = False
        self._files = files
        self._write_line = write
        self._json = json
        self._line = as_json if json else as_text
        self._records = records or offsets_decoder
        self._decode = _decode_offset if offsets_decoder else None
        self._generation = generation

    def file(self, path: Path) -> None:
        if self._json:
            self._write("file", {"path": str(path)})
        else:
            self._write_line(f"Dumping {path}")

    def segment(self, segment: SegmentPlace) -> None:
        """Dump every entry and damaged place."""
        inspection = inspection_of(segment.path.absolute().parent, self._generation, self._files)
        lines = ENTRY_LINES[inspection.generation]
        with OpenSegment(self._files, segment, inspection) as opened:
            if not self._json:
                self._write_line(f"Log starting offset: {segment.base_offset}")
            for found in opened.entries():
                if isinstance(found, Damage):
                    self.damaged = True
                    self._write("damage", damage_line(found))
                    continue
                self.damaged |= not found.sound
                self._write(lines.kind, lines.entry(found))
                if self._records:
                    self._show_records(opened.file, found, lines)

    def index(self, path: Path) -> None:
        data = read_file(self._files, path)
        try:
            if path.suffix == ABORTED_SUFFIX:
                self._aborted(parse_aborted(data, path))
            else:
                self._rows(data, by_offset=path.suffix == ".index")
        except CorruptMessage as e:
            self.damaged = True
            self._write("damage", {"reason": str(e)})

    def _rows(self, data: bytes, *, by_offset: bool) -> None:
        content = parse_index(data, OFFSET_COLUMNS if by_offset else TIME_COLUMNS)
        base = content.base_offset
        self._write(
            "index", {"baseOffset": base, "segmentSize": content.segment_size, "rows": len(content.first)}
        )
        for first, second in zip(content.first, content.second, strict=True):
            offsets = {"offset": base + first, "position": second}
            self._write("row", offsets if by_offset else {"timestamp": first, "offset": base + second})

    def _aborted(self, rows: list[AbortedTransaction]) -> None:
        self._write("index", {"rows": len(rows)})
        for row in rows:
            names = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
            self._write("aborted", dict(zip(names, row, strict=True)))

    def _show_records(self, file: File, found: CandidateEntry, lines: EntryLines) -> None:
        try:
            # The bad checksum is reported; also show what is readable.
            for line in lines.records(found, file, self._decode):
                self._write(lines.record_kind, line)
        except KafkaError as e:
            self.damaged = True
            self._write("damage", {"position": found.position, "size": found.size, "reason": str(e)})

    def _write(self, kind: str, line: dict[str, Any]) -> None:
        self._write_line(self._line(kind, line))


def _decode_offset(record: Record) -> dict[str, Any]:
    try:
        key = decode_key(record.key or b"")
        if key is None:
            return {"fault": f"group metadata, in a key of {len(record.key or b'')} bytes, is not decoded"}
        line: dict[str, Any] = {
            "group": key.group,
            "topic": key.partition.topic,
            "partition": key.partition.partition,
        }
        if record.value is None:
            return line | {"deleted": True}
        value = decode_value(record.value)
    except CorruptMessage as e:
        return {"fault": str(e)}
    return line | {
        "committedOffset": value.offset,
        "leaderEpoch": value.leader_epoch,
        "metadata": value.metadata,
        "commitTimestamp": value.commit_timestamp_ms,
        "expireTimestamp": value.expire_timestamp_ms,
        "topicId": str(value.topic_id),
    }


_NO_TIME = "NoTimestampType"


class EntryLines(NamedTuple):
    kind: str
    entry: Callable[[Any], Line]
    record_kind: str
    records: Callable[[Any, File, Decoder | None], Iterator[Line]]
    """Contents of an entry, regardless of its checksum. Raises `KafkaError`: unreadable; `OSError`."""


def batch_line(found: FoundEntry) -> Line:
    """Fields of a batch, or of a v0 or v1 entry, in the order of Kafka's tool."""
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
    """Fields of a 0.7 entry, named as in its ``DumpLogSegments`` where possible."""
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
    """Fields of a record, written as ``kafkalog consume --format json`` does; ``header``: its v2 batch's."""
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
    number = header.attributes & CODEC_BITS
    return Codec(number).name.lower() if number in list(Codec) else str(number)


def _time_name(kind: TimestampType) -> str:
    return "CreateTime" if kind is TimestampType.CREATE_TIME else "LogAppendTime"


def _sequence(record: Record, header: BatchHeader | None) -> int:
    if header is None or header.base_sequence < 0:
        return -1
    return (header.base_sequence + record.offset - header.base_offset) & 0x7FFF_FFFF


ENTRY_LINES: Mapping[str, EntryLines] = MappingProxyType(
    {
        SINCE_08.generation: EntryLines("batch", batch_line, "record", _batch_records),
        V07.generation: EntryLines("entry", entry_line, "message", _messages),
    }
)


Decoder = Callable[[Record], Mapping[str, Any]]

Line = dict[str, Any]


def damage_line(damage: Damage) -> Line:
    return {"position": damage.position, "size": damage.end - damage.position, "reason": damage.reason}


def as_json(kind: str, line: Line) -> str:
    return json.dumps({"kind": kind, **line}, ensure_ascii=False)


def as_text(kind: str, line: Line) -> str:
    """``name: value`` pairs; records are marked as Kafka's tool does."""
    words = [
        f"{name}: {_word(value)}" for name, value in line.items() if value is not None or name in _NULLABLE
    ]
    prefix = {"record": "| ", "message": "| ", "damage": "DAMAGED "}.get(kind, "")
    return prefix + " ".join(words)


_NULLABLE = ("key", "value")


def bytes_value(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _word(value: Any) -> str:
    """A value on one line, escaped so that record content cannot break lines or control the terminal."""
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
