"""Checks logs offline: every byte of every segment, the files beside it, and the data directory's notes.

Damage has lost records or misleads a broker or reader. What a broker repairs, like a torn end, is a note.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from kafkalog_broker.disk.filesystem import File, FileSystem, read_file
from kafkalog_broker.inspect.contents import Expected
from kafkalog_broker.inspect.inspection import (
    Finding,
    FoundTransactions,
    IndexCheck,
    Inspection,
    OpenSegment,
    PartitionPlace,
    SegmentPlace,
    damage_in,
    files_in,
    look_again,
    note,
    segment_list_in,
    segments_in,
)
from kafkalog_broker.log import segment_list
from kafkalog_broker.log.aborted_transactions import ABORTED_SUFFIX, parse_aborted
from kafkalog_broker.log.walk import LAST_OFFSET, MESSAGES_PER_BYTE, CandidateEntry, Damage
from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock
from pyspark_kafkalog.errors import CorruptMessage, KafkaError

_BAD_CHECKSUM = "wrong checksum"

Progress = Callable[[int], object]
"""Called with the bytes checked since the last call."""


@dataclass(slots=True)
class PartitionReport:
    """Report on one log; ``record_count`` is None if compressed entries were not opened."""

    name: str
    inspection: Inspection
    start_offset: int = 0
    end_offset: int = 0
    segment_count: int = 0
    entry_count: int = 0
    record_count: int | None = 0
    size_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not any(finding.damage for finding in self.findings)


def verify_log(
    files: FileSystem,
    place: PartitionPlace | SegmentPlace,
    inspection: Inspection,
    expected: Expected,
    *,
    last: bool = True,
    deep: bool = False,
    progress: Progress = lambda _: None,
    expect: Callable[[], Expected] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> PartitionReport:
    """Check every segment of a partition, or one, the ``last`` or not; ``deep`` also decompresses and parses
    entries. Beside a running broker damage is checked again, with the facts that ``expect`` then returns.
    """
    directory = place.path.parent if isinstance(place, SegmentPlace) else place.path
    newest, looks = expected, 0

    def state() -> tuple[object, Expected]:
        nonlocal newest
        if looks and expect is not None:
            newest = expect()
        return files_in(directory, files), newest

    def look() -> PartitionReport:
        nonlocal looks
        looks += 1
        report = PartitionReport(place.path.name, inspection)
        check = _Check(files, newest, report, deep, progress if looks == 1 else lambda _: None)
        if isinstance(place, SegmentPlace):
            check.read_list(directory, segments_in(directory, files))
            check.segment(place, first=True, last=last)
        else:
            check.partition(directory)
        return report

    return look_again(
        look, lambda report: damage_in(report.findings), state, directory.absolute().parent, clock
    )


@dataclass(eq=False)
class _Check:
    """*Not thread-safe.* Checks a log's segments in order and writes its report."""

    files: FileSystem
    expected: Expected
    report: PartitionReport
    deep: bool
    progress: Progress

    def __post_init__(self) -> None:
        self._segment: SegmentPlace
        self._next_offset = self._cleaned_offset = self._start_offset = 0
        self._gap_explained = False
        self._segment_end = LAST_OFFSET
        self._missing: list[segment_list.Missing] = []
        self._transactions = FoundTransactions()

    def find(self, what: str, position: int | None = None, *, path: Path | None = None) -> None:
        self.report.findings.append(Finding(path or self._segment.path, what, position))

    def note(self, what: str, position: int | None = None, *, path: Path | None = None) -> None:
        self.report.findings.append(note(path or self._segment.path, what, position))

    def partition(self, directory: Path) -> None:
        try:
            segments = self.against_list(directory)
        except FileNotFoundError:
            if directory.exists():
                raise
            self.note("removed while it was being checked", path=directory)
            return
        if not segments:
            self.find("there is no segment in it", path=directory)
        ends = [segment.base_offset for segment in segments[1:]] + [LAST_OFFSET]
        for number, (segment, end_offset) in enumerate(zip(segments, ends, strict=True)):
            last = number == len(segments) - 1
            self.segment(segment, first=number == 0, last=last, end_offset=end_offset)
        self.against_end(directory, segments)
        compacted = min(self._cleaned_offset, self.report.end_offset)
        if self.deep and compacted > self.report.start_offset:
            what = "a record that is gone, or a batch whose offset was changed,"
            why = "cannot be told there from what the cleaner has removed"
            self.note(f"compacted up to offset {compacted - 1}: {what} {why}", path=directory)

    def read_list(self, directory: Path, segments: list[SegmentPlace]) -> segment_list.SegmentList | None:
        listed = segment_list_in(directory, self.files)
        if listed is not None:
            self._cleaned_offset, self._start_offset = listed.cleaned_offset, listed.start_offset
            durable_offset = max(self.expected.durable_offset, listed.start_offset)
            self.expected = replace(self.expected, durable_offset=durable_offset)
        elif segments and not all(segment.is_ours for segment in segments):
            self._cleaned_offset = LAST_OFFSET
        elif segments and self.expected.gaps_allowed:
            self._cleaned_offset = segments[-1].base_offset
        return listed

    def against_list(self, directory: Path) -> list[SegmentPlace]:
        listed, segments = None, segments_in(directory, self.files)
        path, present = directory / segment_list.SEGMENT_LIST_NAME, False
        # Twice: a broker may delete a segment in between, but replaces the list first.
        for _ in range(2):
            present = path.exists()  # before reading: a broker may create it meanwhile
            listed = self.read_list(directory, segments)
            segments = segments_in(directory, self.files)
            if listed is None:
                break
            sizes = {segment.base_offset: segment.size for segment in segments}
            names = {segment.base_offset: segment.path.name for segment in segments}
            self._missing = segment_list.missing_segments(
                listed, sizes, self.expected.end_offset, names=names
            )
            if not self._missing:
                break
        if listed is None:
            if present:
                self.find("it is cut short or changed: the next start writes it again", path=path)
            return segments
        for missing in self._missing:
            self.find(str(missing), path=directory / missing.why.split(" ")[0])
        unknown = set(segment_list.unlisted(listed, [segment.base_offset for segment in segments]))
        for segment in segments:
            if segment.base_offset in listed.retired:
                self.note("it is being deleted: the next start goes on with it", path=segment.path)
            elif segment.base_offset in unknown:
                self.note("it is not part of the log: the next start moves it aside", path=segment.path)
        return [segment for segment in segments if segment.base_offset not in unknown]

    def segment(
        self, segment: SegmentPlace, *, first: bool, last: bool, end_offset: int = LAST_OFFSET
    ) -> None:
        report, self._segment = self.report, segment
        if first:
            self._next_offset = segment.base_offset
            report.start_offset = max(segment.base_offset, self._start_offset)
        else:
            self._pass_missing()
            if segment.base_offset != self._next_offset:
                self._wrong_name(segment)
        if not last and not segment.size and segment.base_offset >= self._cleaned_offset:
            self.find("it is empty, but segments follow")
        self._next_offset = max(self._next_offset, segment.base_offset)
        self._segment_end = end_offset
        try:
            opened = OpenSegment(self.files, segment, report.inspection)
        except FileNotFoundError:
            self.note("removed while its partition was being checked")
            return
        self._transactions.begin_segment()
        with opened:
            index = report.inspection.index(segment, self.files)
            size = self._walk(opened, index, last)
        report.segment_count += 1
        report.size_bytes += size
        report.end_offset = max(report.end_offset, self._next_offset)
        if index is not None:
            settled, intact = bool(self.expected.stopped_cleanly), not self._damaged(segment)
            report.findings += index.findings(size, settled=settled, last=last, intact=intact)
        if segment.is_ours and not self._damaged(segment):
            self._aborted(segment, growing=last and not self.expected.stopped_cleanly)

    def _aborted(self, segment: SegmentPlace, *, growing: bool) -> None:
        """Compare the aborted transaction file with the segment's markers; it may have more."""
        path = segment.path.with_suffix(ABORTED_SUFFIX)
        mend = "stop the broker; remove it, producers.snapshot and .kafka_cleanshutdown: they are made again"
        try:
            rows = parse_aborted(read_file(self.files, path), path)
        except FileNotFoundError:
            rows = []
        except CorruptMessage as e:
            self.find(f"{e}: {mend}", path=path)
            return
        first = {(row.producer_id, row.marker_offset): row.first_offset for row in rows}
        lost = [
            row
            for row in self._transactions.aborted
            if first.get((row.producer_id, row.marker_offset), LAST_OFFSET) > row.first_offset
        ]
        if lost and not growing:
            self.find(
                f"{len(lost)} aborted transactions are not in it, the first of producer {lost[0].producer_id}"
                f" from offset {lost[0].first_offset} on: readers of committed data would see them; {mend}",
                path=path,
            )

    def against_end(self, directory: Path, segments: list[SegmentPlace]) -> None:
        state, end_offset = self.expected.clean_state, self.expected.end_offset
        if segments and self._damaged(segments[-1]):
            return
        self._pass_missing()
        if self._next_offset < end_offset:
            why = "the broker had closed the log there" if state else "they had been forced to the disk"
            path = segments[-1].path if segments else directory
            self.find(f"{_missing(self._next_offset, end_offset)} at its end: {why}", path=path)
            return
        if len(state) < 3 or not segments or self._missing:
            return
        found = (self._next_offset, segments[-1].base_offset, segments[-1].size)
        if found != state[:3]:
            self.find(
                f"it was closed at offset {state[0]}, in segment {state[1]} of {state[2]} bytes; found are"
                f" offset {found[0]}, segment {found[1]}, {found[2]} bytes",
                path=segments[-1].path,
            )

    def _pass_missing(self) -> None:
        for missing in self._missing:
            if missing.first <= self._next_offset < missing.end:
                self._next_offset = missing.end

    def _damaged(self, segment: SegmentPlace) -> bool:
        return any(finding.path == segment.path for finding in self.report.findings)

    def _walk(self, opened: OpenSegment, index: IndexCheck | None, last: bool) -> int:
        file, position = opened.file, 0
        while True:
            broken: list[tuple[int, str]] = []
            for found in opened.entries(position):
                self.progress(found.end - found.position)
                if isinstance(found, Damage) or not found.sound:
                    broken.append((found.position, self._fault(found)))
                    continue
                if broken:
                    self._lost(broken, found, file)
                    broken = []
                self._entry(found, file)
                if index is not None:
                    index.see(found)
                position = found.end
            # If a broker is appending, the rest of the truncated entry may have arrived.
            if not (broken and last and opened.has_grown()):
                break
        if broken:
            self._torn(broken, opened.size, last)
        return opened.size

    def _entry(self, found: CandidateEntry, file: File) -> None:
        report = self.report
        count = found.record_count
        if self.deep:
            try:
                count = found.count(file)
            except KafkaError as e:
                self.find(str(e), found.position)
        self._place(found, self._first_offset(found, file))
        try:
            self._transactions.see(found, file)
        except CorruptMessage as e:
            self.find(str(e), found.position)
        report.entry_count += 1
        total = report.record_count
        report.record_count = None if total is None or count is None else total + count

    def _place(self, found: CandidateEntry, first: int) -> None:
        """Check an entry's offset, which no checksum covers; ``first`` is its first one."""
        look, gap, base_offset = self.report.inspection, first - self._next_offset, self._segment.base_offset
        most = look.max_relative
        too_far = most is not None and found.last_offset - base_offset > most
        beyond = gap != 0 and found.next_offset > self._segment_end
        if too_far:
            what = f"offset {found.last_offset} is more than {most} above the segment's first"
            self.find(what, found.position)
        elif gap < 0 or beyond:
            what = f"{look.an_entry} with offset {found.first_offset} where offset {self._next_offset}"
            self.find(f"{what} should follow", found.position)
        elif gap and found.first_offset >= self._cleaned_offset:
            self.find(_missing(self._next_offset, first), found.position)
        if too_far or beyond or first < base_offset:
            # The offset is wrong: continue as if it were right.
            self._next_offset += found.next_offset - first
        else:
            self._next_offset = found.next_offset

    def _first_offset(self, found: CandidateEntry, file: File) -> int:
        """First offset of an entry, opened if need be; if unreadable, assume that it follows if it can."""
        first = found.first_offset
        if not found.first_is_known:
            try:
                return found.next_offset - found.count(file)
            except KafkaError:
                if 0 <= first - self._next_offset < found.size * MESSAGES_PER_BYTE:
                    return self._next_offset
        return first

    def _lost(self, broken: list[tuple[int, str]], found: CandidateEntry, file: File) -> None:
        for position, fault in broken[:-1]:
            self.find(fault, position)
        position, fault = broken[-1]
        first = self._first_offset(found, file)
        following = first > self._next_offset
        lost = _missing(self._next_offset, first) if following else "no offset is missing"
        self.find(f"{fault}; sound again at byte {found.position}: {lost}", position)
        self._next_offset = max(self._next_offset, first)

    def _torn(self, broken: list[tuple[int, str]], size: int, last: bool) -> None:
        position, fault = broken[0]
        what = f"{size - position} bytes from here to the end of the file cannot be read: {fault}"
        expected = self.expected
        # A complete entry with a bad checksum was written whole: it can have lost pages only if it was
        # not durable, which only the data directory knows.
        whole = all(fault.startswith(_BAD_CHECKSUM) for _, fault in broken)
        if not last:
            self.find(f"{what}; segments follow", position)
            self._gap_explained = True
        elif expected.stopped_cleanly:
            self.find(f"{what}; the broker had closed this log", position)
        elif self._next_offset < expected.durable_offset:
            known = f"offsets up to {expected.durable_offset - 1} had been forced to the disk"
            self.find(f"{what}; {known}", position)
        elif expected.stopped_cleanly is None and (whole or position == 0):
            look = self.report.inspection
            nothing = f"; there is no {look.entry} of generation {look.generation}" if position == 0 else ""
            self.find(what + nothing, position)
        else:
            self.note(
                f"torn tail: {what}. An unclean stop leaves that, or an append that is under way;"
                f" the next start cuts it off at offset {self._next_offset}",
                position,
            )

    def _fault(self, found: CandidateEntry | Damage) -> str:
        if isinstance(found, Damage):
            return found.reason
        return (
            f"{_BAD_CHECKSUM} of the {self.report.inspection.entry} with offsets {found.first_offset} to"
            f" {found.last_offset}: {found.crc:#010x}, its header says {found.stored_crc:#010x}"
        )

    def _wrong_name(self, segment: SegmentPlace) -> None:
        explained, self._gap_explained = self._gap_explained, False
        if segment.base_offset < self._next_offset:
            self.find(
                f"it is named by offset {segment.base_offset}, but the segment before it ends with offset"
                f" {self._next_offset - 1}"
            )
        elif explained or segment.base_offset > self._cleaned_offset:
            self.find(_missing(self._next_offset, segment.base_offset))


def _missing(first: int, end: int) -> str:
    if end - first == 1:
        return f"offset {first} is missing"
    return f"offsets {first} to {end - 1} are missing"
