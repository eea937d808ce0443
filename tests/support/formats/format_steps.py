"""What `formats` does in steps, done at once: for tests and benchmarks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.convert import (
    PIECE_BYTES,
    ConvertedEntry,
    Piece,
    Take,
    batch_of_entry_in_steps,
    for_reader_in_steps,
    for_topic_in_steps,
)
from pyspark_kafkalog.formats.v07 import CheckedSet, check_produced_in_steps
from pyspark_kafkalog.formats.varint import Buffer
from pyspark_kafkalog.steps import Steps, run_steps, with_jobs_run


def check_produced(buf: Buffer, *, max_message_bytes: int, max_bytes: int) -> CheckedSet:
    """`check_produced_in_steps`, run at once."""
    return run_steps(check_produced_in_steps(buf, max_message_bytes=max_message_bytes, max_bytes=max_bytes))


def batch_of_entry(entry: Buffer, offset: int, *, max_bytes: int, leader_epoch: int = -1) -> ConvertedEntry:
    """`batch_of_entry_in_steps`, at once."""
    return run_steps(batch_of_entry_in_steps(entry, offset, max_bytes=max_bytes, leader_epoch=leader_epoch))


def for_reader(
    buf: Buffer, magic: int, *, start_offset: int = 0, max_bytes: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """The pieces of `for_reader_in_steps`, one by one."""
    return _one_by_one(
        lambda take: for_reader_in_steps(
            buf, magic, take, start_offset=start_offset, max_bytes=max_bytes, piece_bytes=piece_bytes
        )
    )


def for_topic(
    buf: Buffer, magic: int, *, base_offset: int = 0, max_bytes: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """The pieces of `for_topic_in_steps`, one by one."""
    return _one_by_one(
        lambda take: for_topic_in_steps(
            buf, magic, take, base_offset=base_offset, max_bytes=max_bytes, piece_bytes=piece_bytes
        )
    )


def _one_by_one(steps_with: Callable[[Take], Steps[None]]) -> Iterator[Piece]:
    pieces: deque[Piece] = deque()
    each = with_jobs_run(steps_with(pieces.append))
    going_on = True
    while going_on:
        try:
            going_on = next(each, False) is None
        except KafkaError:
            yield from pieces
            raise
        while pieces:
            yield pieces.popleft()
