"""What a reader of committed data makes of a log: fetches, and Kafka's own rule for what they bring."""

from __future__ import annotations

from kafkalog_broker.log.log import Log
from pyspark_kafkalog.formats.batch import ControlType, decode_records, marker_type, read_header
from tests.support.log.logs import contents


def committed(log: Log, start: int = 0, max_bytes: int = 1 << 20) -> list[bytes]:
    """The values from ``start`` to the last stable offset."""
    found: list[bytes] = []
    offset = start
    while offset < log.last_stable_offset:
        piece = log.read(offset, max_bytes, at_least_one=True, committed_only=True)
        left = sorted(piece.aborted, key=lambda row: row.first_offset)
        data, position, aborted = contents(piece), 0, set()
        assert data
        while position < len(data):
            header = read_header(data, position)
            while left and left[0].first_offset <= header.last_offset:
                aborted.add(left.pop(0).producer_id)
            if header.is_control:
                if marker_type(data[position:]) is ControlType.ABORT:
                    aborted.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in aborted:
                records = decode_records(data, position, header, 1 << 20)
                found += [record.value or b"" for record in records if record.offset >= offset]
            position += header.size
            offset = header.next_offset
    return found
