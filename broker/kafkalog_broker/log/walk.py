"""Walks over a segment's entries. `walk_frames` and `SegmentCheck` stop at damage, since nothing after it may
be served; `salvage` continues. `scan` has an `EntryLayout` for each log family.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from kafkalog_broker.disk.filesystem import File
from kafkalog_broker.log.offset_scheme import MAX_RELATIVE
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import Frame, MessageFormat

CHUNK_BYTES = 8 << 10
"""One read for a look-up: an index interval (4 KiB) and the header after it."""

SCAN_BYTES = 256 << 10

MESSAGES_PER_BYTE = 40
"""Most messages per byte of a compressed v0 or v1 set: gzip expands 1032 times, messages have 26 bytes."""


LAST_OFFSET = (1 << 63) - 1

_CRC = struct.Struct(">I")


def walk_frames(
    file: File, fmt: MessageFormat, start: int, end: int, offset: int, *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Frame]:
    """Frames in bytes ``[start, end)`` by their headers; ``offset`` of the first is only used for 0.7."""
    buf = memoryview(b"")
    origin = position = start  # file position of the buffer; of the next frame
    while position < end:
        frame = fmt.frame_at(buf, position - origin, offset) if position - origin <= len(buf) else None
        if frame is None:
            if end - position < fmt.min_frame_size:
                raise CorruptMessage(f"a frame at byte {position} is cut short at byte {end}")
            buf = memoryview(file.read_at(position, min(chunk_bytes, end - position)))
            origin = position
            frame = fmt.frame_at(buf, 0, offset)
            if frame is None:
                raise CorruptMessage(f"the file ends inside the header at byte {position}")
        position = origin + frame.position + frame.size
        if position > end:
            raise CorruptMessage(f"the frame at byte {origin + frame.position} ends beyond byte {end}")
        yield moved(frame, origin + frame.position)
        offset = frame.next_offset


def in_order(
    frames: Iterator[Frame],
    low: int,
    high: int,
    *,
    path: Path,
    gaps_allowed: bool,
    exact: bool = False,
    wanted: int = 0,
) -> Iterator[Frame]:
    """The same frames, checked to lie in offsets ``[low, high)`` and to follow each other, as no checksum
    covers offsets: with ``exact`` the first at ``low``, without gaps unless ``gaps_allowed`` (cleaned logs).
    A wrong offset is skipped if the expected one is below ``wanted``. Raises `CorruptMessage`.
    """
    follows = exact
    for frame in frames:
        first, last = frame.first_offset, frame.last_offset
        gap = first - low
        skips = gap > 0 and follows and not gaps_allowed and is_lost(frame, gap)
        if skips or gap < 0 or last < first or last >= high:
            should_be = low + last - first
            if not (follows and frame.first_is_known and low <= should_be < min(wanted, high)):
                raise CorruptMessage(
                    f"{path.name}, byte {frame.position}: offset {first} stands where offset {low} should be,"
                    f" below {high}"
                )
            low = should_be + 1
            continue
        yield frame
        low, follows = frame.next_offset, True


def is_lost(frame: Frame, gap: int) -> bool:
    return frame.first_is_known or gap >= frame.size * MESSAGES_PER_BYTE


def read_frame(file: File, frame: Frame) -> memoryview:
    data = file.read_at(frame.position, frame.size)
    if len(data) != frame.size:
        raise CorruptMessage(f"the frame at byte {frame.position} is cut short")
    return memoryview(data)


def moved(frame: Frame, position: int) -> Frame:
    """The same frame, in a buffer or file where it begins at ``position``."""
    return Frame(position, *frame[1:])  # _replace takes four times as long


@dataclass(slots=True)
class CandidateEntry(ABC):
    """An entry as its header describes it, which may be wrong: a v2 batch, a v0, v1 or 0.7 entry."""

    position: int
    size: int
    """Bytes, including the header."""
    summed_from: int
    """Position of the first byte covered by the checksum, up to the entry's end."""
    first_offset: int
    """First offset, or the last one if the first is unknown."""
    first_is_known: bool
    """False for compressed v0 and v1 sets."""
    last_offset: int
    next_offset: int
    """Expected offset of the next entry."""
    max_timestamp: int
    record_count: int | None
    """Number of records; None if only decompressing can tell."""
    stored_crc: int
    crc: int

    @staticmethod
    @abstractmethod
    def checksum(data: memoryview, crc: int, /) -> int: ...

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def sound(self) -> bool:
        return self.crc == self.stored_crc

    @abstractmethod
    def count(self, file: File) -> int:
        """Decompress, parse and count its records, regardless of its checksum."""

    def content(self, file: File, crc_at: int) -> bytearray:
        """Its bytes, with the checksum that they have written at ``crc_at``. Raises `CorruptMessage`."""
        data = bytearray(file.read_at(self.position, self.size))
        if len(data) < self.size:
            raise CorruptMessage(f"the file became shorter than {self.end} bytes")
        _CRC.pack_into(data, crc_at, self.crc)
        return data


class Damage(msgspec.Struct, frozen=True):
    """Bytes ``[position, end)`` without a recognizable entry, and why none begins there."""

    position: int
    end: int
    reason: str


Scan = Callable[[File, int, int, int], Iterator[CandidateEntry | Damage]]
"""Contents of a segment; arguments: its file, size in bytes and base offset, and the position to begin at."""


class Window:
    """*Not thread-safe.* A file's bytes below ``size``, buffered in chunks."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self.size = size
        self._origin = 0
        self._chunk = memoryview(b"")

    def view(self, position: int, size: int) -> memoryview:
        """Up to ``size`` bytes, at most `SCAN_BYTES`; fewer only at the end of the file."""
        size = min(size, SCAN_BYTES, self.size - position)
        inside = position - self._origin
        if inside < 0 or inside + size > len(self._chunk):
            wanted = min(SCAN_BYTES, self.size - position)
            self._chunk, self._origin, inside = memoryview(self._file.read_at(position, wanted)), position, 0
        return self._chunk[inside : inside + size]

    def sum(self, position: int, end: int, checksum: Callable[[memoryview, int], int]) -> int:
        """Checksum of bytes ``[position, end)``. Raises `CorruptMessage`: the file is too short."""
        crc = 0
        while position < end:
            view = self.view(position, end - position)
            if not view:
                raise CorruptMessage(f"the file became shorter than {end} bytes")
            crc = checksum(view, crc)
            position += len(view)
        return crc

    def peek(self, position: int, size: int) -> bytes:
        """A few bytes elsewhere, without replacing the buffer; fewer at the end of the file."""
        return self._file.read_at(position, max(0, min(size, self.size - position)))


class EntryLayout(Protocol):
    smallest: int
    key_bytes: int
    """Bytes of an entry that `candidates` needs to see."""

    def header_at(self, window: Window, position: int) -> CandidateEntry:
        """The complete entry at ``position``, without ``crc``. Raises `CorruptMessage`: none."""

    def candidates(self, window: Window, chunk: bytes, position: int) -> Iterable[int]:
        """Indexes into ``chunk``, at file position ``position``, where an entry may begin; ascending."""


def salvage(window: Window, layout: EntryLayout, *, start: int = 0) -> Iterator[CandidateEntry | Damage]:
    """Entries and damage, without gaps. One with a bad checksum counts if another seems to follow it."""
    position = start
    while position < window.size:
        try:
            found = _summed(window, layout, position)
            if not found.sound:
                _check_length(window, layout, found)
        except CorruptMessage as e:
            end = _next_sound(window, layout, position + 1, window.size)
            yield Damage(position, end, str(e))
            position = end
        else:
            yield found
            position = found.end


def _summed(window: Window, layout: EntryLayout, position: int) -> CandidateEntry:
    found = layout.header_at(window, position)
    found.crc = window.sum(found.summed_from, found.end, type(found).checksum)
    return found


def _check_length(window: Window, layout: EntryLayout, damaged: CandidateEntry) -> None:
    sums = f"the checksum is {damaged.crc:#010x}, its header says {damaged.stored_crc:#010x},"
    if damaged.end != window.size and not _looks_like_one(window, layout, damaged.end):
        raise CorruptMessage(f"{sums} and nothing follows where it should end")
    within = _next_sound(window, layout, damaged.position + 1, damaged.end)
    position = within
    while position < damaged.end and _looks_like_one(window, layout, position):
        position = layout.header_at(window, position).end
    if within < position == damaged.end:
        raise CorruptMessage(f"{sums} and entries that follow it begin before its end, the first at {within}")


def _looks_like_one(window: Window, layout: EntryLayout, position: int) -> bool:
    try:
        layout.header_at(window, position)
    except CorruptMessage:
        return False
    return True


def _next_sound(window: Window, layout: EntryLayout, start: int, stop: int) -> int:
    position = start
    while stop - position >= layout.smallest:
        chunk = bytes(window.view(position, min(SCAN_BYTES, stop - position)))
        if len(chunk) < layout.smallest:
            break
        for begins in layout.candidates(window, chunk, position):
            if _is_sound(window, layout, position + begins):
                return position + begins
        position += len(chunk) - (layout.key_bytes - 1)
    return stop


def _is_sound(window: Window, layout: EntryLayout, position: int) -> bool:
    with suppress(CorruptMessage):
        return _summed(window, layout, position).sound
    return False


class Survivors(msgspec.Struct, frozen=True):
    """The valid beginning of a segment; ``fault``: why it ends. ``damaged``: kept places in it."""

    size: int
    next_offset: int
    fault: str | None
    damaged: tuple[str, ...] = ()


class SegmentCheck(msgspec.Struct, frozen=True):
    """Checks a segment from its beginning; ``on_frame`` gets each valid frame: complete, sound, its offsets
    following the previous ones (``gaps_allowed``: rising). Stops at the first invalid one; below
    ``durable_offset``, where damage cannot be the crash's, it continues at what ``scan`` finds.
    """

    file: File
    format: MessageFormat
    size: int
    base_offset: int
    on_frame: Callable[[Frame], None]
    gaps_allowed: bool
    end_offset: int = LAST_OFFSET
    durable_offset: int = 0
    scan: Scan | None = None

    def run(self) -> Survivors:
        position, next_offset = 0, self.base_offset
        damaged: list[str] = []
        while True:
            found = self._check_from(position, next_offset)
            if found.fault is None or found.next_offset >= self.durable_offset or self.scan is None:
                break
            after = self._after_damage(found, self.scan)
            if after is None:
                break
            damaged.append(f"byte {found.size}: {found.fault}")
            position, next_offset = after
        return Survivors(found.size, found.next_offset, found.fault, tuple(damaged))

    def _after_damage(self, found: Survivors, scan: Scan) -> tuple[int, int] | None:
        """Position and offset at which to continue after a fault; None if nothing follows it."""
        moved_to: tuple[int, int] | None = None  # where to continue if only the first entry's offset is wrong
        for entry in scan(self.file, self.size, self.base_offset, found.size):
            if isinstance(entry, Damage):
                moved_to = None
                continue
            if moved_to is not None and entry.first_offset == moved_to[1]:
                return moved_to
            moved_to = None
            if entry.position == found.size and entry.first_is_known:
                if not entry.sound and entry.first_offset == found.next_offset:
                    return entry.end, entry.next_offset  # only its content is bad
                after = found.next_offset + entry.next_offset - entry.first_offset
                moved_to = (entry.end, after) if entry.sound and after <= self.end_offset else None
            elif (
                entry.sound
                and entry.position > found.size
                and found.next_offset <= entry.first_offset
                and entry.next_offset <= self.end_offset
            ):
                return entry.position, entry.first_offset
        return moved_to

    def _check_from(self, position: int, next_offset: int) -> Survivors:
        while position < self.size:
            buf = memoryview(self.file.read_at(position, min(SCAN_BYTES, self.size - position)))
            inside = 0
            while position < self.size:
                try:
                    frame = self._valid_frame(buf, inside, position, next_offset)
                    if frame is None:
                        break
                    gap = frame.first_offset - next_offset
                    if gap and not self._may_leave(gap, frame):
                        raise CorruptMessage(f"offset {frame.first_offset} follows {next_offset - 1}")
                    if frame.next_offset > self.end_offset:
                        raise CorruptMessage(
                            f"offset {frame.last_offset} is above the segment's last, {self.end_offset - 1}"
                        )
                except CorruptMessage as e:
                    return Survivors(position, next_offset, str(e))
                self.on_frame(moved(frame, position))
                inside += frame.size
                position += frame.size
                next_offset = frame.next_offset
        return Survivors(position, next_offset, None)

    def _may_leave(self, gap: int, frame: Frame) -> bool:
        """Whether a gap is allowed, or only apparent: compressed sets hide their first offset."""
        if gap < 0 or frame.last_offset - self.base_offset > MAX_RELATIVE:
            return False
        return self.gaps_allowed or (not frame.first_is_known and gap < frame.size * MESSAGES_PER_BYTE)

    def _valid_frame(self, buf: memoryview, inside: int, position: int, offset: int) -> Frame | None:
        """The frame at ``inside`` in ``buf``, checked; None if more of the file must be read first."""
        frame = self.format.frame_at(buf, inside, offset)
        if frame is None:
            if inside == 0:
                raise CorruptMessage(f"an entry is cut short at byte {self.size}")
            return None
        # Before allocating: a nonsense length must not exceed the file.
        if position + frame.size > self.size:
            raise CorruptMessage(f"the entry at byte {position} does not end in the file's {self.size} bytes")
        if frame.end <= len(buf):
            self.format.verify(buf, frame)
            return frame
        if inside:
            return None
        whole = memoryview(self.file.read_at(position, frame.size))
        self.format.verify(whole, moved(frame, 0))
        return frame
