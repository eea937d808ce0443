"""Finds how much of a segment survived a crash: its entries one by one, each with its checksum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.disk.filesystem import File
from broker.log.offset_scheme import MAX_RELATIVE
from broker.log.walk import LAST_OFFSET, MESSAGES_PER_BYTE, SCAN_BYTES, Damage, Scan, moved
from pyspark_kafkalog.errors import CorruptMessage
from pyspark_kafkalog.formats.base import Frame, MessageFormat


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
