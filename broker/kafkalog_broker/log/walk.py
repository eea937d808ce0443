"""The walks over a segment's entries: `walk_frames`, the check after a crash, and salvage.

What follows a fault must not be served, so `walk_frames` and `check_segment` end there. `salvage` goes on: it
finds the entries that can be recognized, and the places without any. What an entry looks like is an
`EntryLayout`; `scan` has one for each family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from kafkalog_broker.disk.filesystem import File
from kafkalog_broker.log.offset_scheme import MAX_RELATIVE
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import Frame, MessageFormat

CHUNK_BYTES = 8 << 10
"""One read for a look-up: an index interval (4 KiB) and the header after it."""

SCAN_BYTES = 256 << 10
"""One read when a whole segment is walked."""

MESSAGES_PER_BYTE = 40
"""The most that a byte of a compressed set of v0 or v1 can hold: gzip makes at most 1032 bytes of one, and
the smallest message has 26.
"""


LAST_OFFSET = (1 << 63) - 1
"""No offset is above it."""


def walk_frames(
    file: File, fmt: MessageFormat, start: int, end: int, offset: int, *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Frame]:
    """The frames in bytes ``[start, end)`` of the file, by their headers alone.

    ``start`` is where a frame begins, and ``offset`` is what it has where offsets count bytes; where they
    count records the frames say it themselves. `Frame.position` counts from the
    beginning of the file.
    """
    buf = memoryview(b"")
    origin = position = start  # of the buffer's first byte; of the next frame
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
    """The same frames, each of which must be in offsets ``[low, high)`` and follow the one before it.

    No checksum covers an entry's offset. Unless ``gaps_allowed`` (a cleaner has been there) each begins where
    the one before it ends, and with ``exact`` the first one at ``low``; where a compressed set of v0 or v1
    begins only opening it would tell. A frame whose offset is wrong is passed over if the one it should have
    is below ``wanted``. ``path`` is for the errors.

    Raises `CorruptMessage`: an offset is wrong, or what ``frames`` raises.
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
    """Whether it is certain that ``gap`` offsets are missing before the frame."""
    return frame.first_is_known or gap >= frame.size * MESSAGES_PER_BYTE


def read_frame(file: File, frame: Frame) -> memoryview:
    """All bytes of a frame that `walk_frames` found.
    Raises `CorruptMessage`: the file ends before the frame does.
    """
    data = file.read_at(frame.position, frame.size)
    if len(data) != frame.size:
        raise CorruptMessage(f"the frame at byte {frame.position} is cut short")
    return memoryview(data)


def moved(frame: Frame, position: int) -> Frame:
    """The same frame, seen in a buffer or file where it begins at ``position``."""
    return Frame(position, *frame[1:])  # _replace takes four times as long


@dataclass(slots=True)
class CandidateEntry(ABC):
    """An entry by its header, which may be wrong: a v2 batch, an entry of v0 or v1, or one of 0.7."""

    position: int
    """Where it begins in the file."""
    size: int
    """In bytes, with its header."""
    summed_from: int
    """Position of the first byte that the checksum covers; the last is that of the entry."""
    first_offset: int
    """Offset at which it begins, or where that is not known the last one."""
    first_is_known: bool
    """Whether it begins at ``first_offset``; not known of compressed sets of v0 and v1."""
    last_offset: int
    next_offset: int
    """Offset at which the next entry begins, if none is missing."""
    max_timestamp: int
    """In milliseconds, -1 where there is none."""
    record_count: int | None
    """The records in it; None where it must be opened for that."""
    stored_crc: int
    """The checksum in its header."""
    crc: int
    """The checksum of its bytes."""

    @property
    def end(self) -> int:
        """Position of the first byte after it."""
        return self.position + self.size

    @property
    def sound(self) -> bool:
        """Whether its checksum is right."""
        return self.crc == self.stored_crc

    @abstractmethod
    def count(self, file: File) -> int:
        """Decompress it, parse its records, whatever its checksum is, and count them."""


F = TypeVar("F", bound=CandidateEntry)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes ``[position, end)`` in which no entry can be made out, and why none begins there."""

    position: int
    end: int
    reason: str


class Scan(Protocol):
    """Walks a segment that may be damaged."""

    def __call__(
        self, file: File, size: int, base_offset: int, /, *, start: int = 0
    ) -> Iterator[CandidateEntry | Damage]:
        """What is in bytes ``[start, size)``; the segment is named by ``base_offset``."""
        ...


class Window:
    """*Not thread-safe.* A file's bytes below ``size``, a chunk of them in memory."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self.size = size
        self._origin = 0
        self._chunk = memoryview(b"")

    def view(self, position: int, size: int) -> memoryview:
        """Up to ``size`` bytes, `SCAN_BYTES` at most; fewer only where the file ends."""
        size = min(size, SCAN_BYTES, self.size - position)
        inside = position - self._origin
        if inside < 0 or inside + size > len(self._chunk):
            wanted = min(SCAN_BYTES, self.size - position)
            self._chunk, self._origin, inside = memoryview(self._file.read_at(position, wanted)), position, 0
        return self._chunk[inside : inside + size]

    def sum(self, position: int, end: int, checksum: Callable[[memoryview, int], int]) -> int:
        """The checksum of bytes ``[position, end)``. Raises `CorruptMessage` when they are not there."""
        crc = 0
        while position < end:
            view = self.view(position, end - position)
            if not view:
                raise CorruptMessage(f"the file became shorter than {end} bytes")
            crc = checksum(view, crc)
            position += len(view)
        return crc

    def peek(self, position: int, size: int) -> bytes:
        """A few bytes somewhere else: fewer where the file ends. The chunk in memory stays."""
        return self._file.read_at(position, max(0, min(size, self.size - position)))


class EntryLayout(Protocol[F]):
    """What entries of one kind look like."""

    smallest: int
    """Bytes of the smallest entry."""
    key_bytes: int
    """So many bytes of an entry `candidates` must see to take its place for one."""

    def header_at(self, window: Window, position: int) -> F:
        """The entry that begins at ``position``, without its ``crc``; all of it is in the file.
        Raises `CorruptMessage`: there is none.
        """
        ...

    def checksum(self, found: F) -> Callable[[memoryview, int], int]:
        """Computes its checksum."""
        ...

    def candidates(self, window: Window, chunk: bytes, position: int) -> Iterable[int]:
        """Where in ``chunk``, which is at ``position`` of the file, an entry may begin; in order."""
        ...


def salvage(window: Window, layout: EntryLayout[F], *, start: int = 0) -> Iterator[F | Damage]:
    """What is in the window from ``start`` on, in order and without gaps.

    An entry whose checksum fails still counts as one if what looks like an entry follows it, and if it does
    not hold the entries that should follow it; else neither its header nor its length can be trusted. Memory
    is bounded whatever headers claim.
    """
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


def _summed(window: Window, layout: EntryLayout[F], position: int) -> F:
    """The entry at ``position`` with its checksum. Raises `CorruptMessage` when there is none."""
    found = layout.header_at(window, position)
    found.crc = window.sum(found.summed_from, found.end, layout.checksum(found))
    return found


def _check_length(window: Window, layout: EntryLayout[F], damaged: F) -> None:
    """Raises `CorruptMessage` when the length of an entry with a wrong checksum is wrong, too."""
    sums = f"the checksum is {damaged.crc:#010x}, its header says {damaged.stored_crc:#010x},"
    if damaged.end != window.size and not _looks_like_one(window, layout, damaged.end):
        raise CorruptMessage(f"{sums} and nothing follows where it should end")
    within = _next_sound(window, layout, damaged.position + 1, damaged.end)
    position = within
    while position < damaged.end and _looks_like_one(window, layout, position):
        position = layout.header_at(window, position).end
    if within < position == damaged.end:
        raise CorruptMessage(f"{sums} and entries that follow it begin before its end, the first at {within}")


def _looks_like_one(window: Window, layout: EntryLayout[F], position: int) -> bool:
    try:
        layout.header_at(window, position)
    except CorruptMessage:
        return False
    return True


def _next_sound(window: Window, layout: EntryLayout[F], start: int, stop: int) -> int:
    """Where the next possible entry with a right checksum begins in ``[start, stop)``; ``stop`` when there is
    none.
    """
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


def _is_sound(window: Window, layout: EntryLayout[F], position: int) -> bool:
    try:
        return _summed(window, layout, position).sound
    except CorruptMessage:
        return False


@dataclass(frozen=True, slots=True)
class Survivors:
    """The valid beginning of a segment: ``size`` bytes up to ``next_offset``, and why it ends there
    (None where the file ends too). ``damaged`` are the places in it that are not valid all the same: what
    was on the disk before the crash is not cut off for their sake.
    """

    size: int
    next_offset: int
    fault: str | None
    damaged: tuple[str, ...] = ()


def check_segment(
    file: File,
    fmt: MessageFormat,
    size: int,
    base_offset: int,
    on_frame: Callable[[Frame], None],
    *,
    gaps_allowed: bool,
    end_offset: int = LAST_OFFSET,
    durable_offset: int = 0,
    scan: Scan | None = None,
) -> Survivors:
    """Check ``size`` bytes of a segment from its beginning; ``on_frame`` gets each valid frame.

    An entry is valid if it is whole in the file, its checksum holds, and its offsets follow those before
    it and are below ``end_offset``. Both kinds of damage end at the first entry that is not: a lost block and
    a nonsense block. With ``gaps_allowed`` (a cleaner has been there) offsets need only rise.

    What is below ``durable_offset`` was on the disk: no crash has damaged it. There reading goes on after
    the damage, where ``scan`` finds more.

    Raises `OSError`: the disk refused to read, which is not taken for damage.
    """
    position, next_offset = 0, base_offset
    damaged: list[str] = []
    while True:
        found = _check_from(
            file, fmt, size, position, next_offset, on_frame,
            base_offset=base_offset, end_offset=end_offset, gaps_allowed=gaps_allowed,
        )  # fmt: skip
        if found.fault is None or found.next_offset >= durable_offset or scan is None:
            break
        after = _after_damage(file, size, found, scan, base_offset, end_offset)
        if after is None:
            break
        damaged.append(f"byte {found.size}: {found.fault}")
        position, next_offset = after
    return Survivors(found.size, found.next_offset, found.fault, tuple(damaged))


def _after_damage(
    file: File, size: int, found: Survivors, scan: Scan, base_offset: int, end_offset: int
) -> tuple[int, int] | None:
    """Position and offset at which reading can go on after a fault; None when nothing follows it."""
    moved_to: tuple[int, int] | None = None  # where reading goes on if only the offset of the first is wrong
    for entry in scan(file, size, base_offset, start=found.size):
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
            moved_to = (entry.end, after) if entry.sound and after <= end_offset else None
        elif (
            entry.sound
            and entry.position > found.size
            and found.next_offset <= entry.first_offset
            and entry.next_offset <= end_offset
        ):
            return entry.position, entry.first_offset
    return moved_to


def _check_from(
    file: File,
    fmt: MessageFormat,
    size: int,
    position: int,
    next_offset: int,
    on_frame: Callable[[Frame], None],
    *,
    base_offset: int,
    end_offset: int,
    gaps_allowed: bool,
) -> Survivors:
    """Up to the first entry that is not valid."""
    while position < size:
        buf = memoryview(file.read_at(position, min(SCAN_BYTES, size - position)))
        inside = 0
        while position < size:
            try:
                frame = _valid_frame(file, fmt, buf, inside, position, size, next_offset)
                if frame is None:
                    break
                gap = frame.first_offset - next_offset
                if gap and not _may_leave(gap, frame, base_offset, gaps_allowed):
                    raise CorruptMessage(f"offset {frame.first_offset} follows {next_offset - 1}")
                if frame.next_offset > end_offset:
                    raise CorruptMessage(
                        f"offset {frame.last_offset} is above the segment's last, {end_offset - 1}"
                    )
            except CorruptMessage as e:
                return Survivors(position, next_offset, str(e))
            on_frame(moved(frame, position))
            inside += frame.size
            position += frame.size
            next_offset = frame.next_offset
    return Survivors(position, next_offset, None)


def _may_leave(gap: int, frame: Frame, base_offset: int, gaps_allowed: bool) -> bool:
    """Whether offsets may be missing before the frame, or seem so: a compressed set of v0 or v1 is named by
    its last offset, which no checksum covers, and has at most a known number of messages.
    """
    if gap < 0 or frame.last_offset - base_offset > MAX_RELATIVE:
        return False
    return gaps_allowed or (not frame.first_is_known and gap < frame.size * MESSAGES_PER_BYTE)


def _valid_frame(
    file: File, fmt: MessageFormat, buf: memoryview, inside: int, position: int, size: int, offset: int
) -> Frame | None:
    """The frame at byte ``inside`` of ``buf``, checked; None when more of the file must be read first."""
    frame = fmt.frame_at(buf, inside, offset)
    if frame is None:
        if inside == 0:
            raise CorruptMessage(f"an entry is cut short at byte {size}")
        return None
    # Before memory is taken for it: a nonsense length cannot be larger than the file.
    if position + frame.size > size:
        raise CorruptMessage(f"the entry at byte {position} does not end in the file's {size} bytes")
    if frame.end <= len(buf):
        fmt.verify(buf, frame)
        return frame
    if inside:
        return None
    whole = memoryview(file.read_at(position, frame.size))
    fmt.verify(whole, moved(frame, 0))
    return frame
