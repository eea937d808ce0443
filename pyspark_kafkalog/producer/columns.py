"""Records as columns: lists of Python objects, or Arrow batches encoded by numba."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from pyspark_kafkalog.columnar.kernel_cache import Kernel, KernelName, kernel
from pyspark_kafkalog.errors import InvalidRecord, KafkaError
from pyspark_kafkalog.producer import encoder
from pyspark_kafkalog.types import Header

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

WARM_UP_ROWS = 200_000
"""Rows that a process encodes in plain Python before it loads numba, which takes as long."""

ANYWHERE = -(1 << 63)  # partition of rows that may go to any
_MORE_BYTES = 16  # added to a row's bound, covers a record with every number at its maximum length
_FEW = 1 << 16  # lower partition numbers are sorted as 16 bits
_FARTHEST_TIME = 1 << 61  # times closer to 0 than this differ by at most 64 bits
_ALLOWED = ("value", "key", "headers", "timestamp", "partition")
SizeBound = Callable[[int, Sequence[Header], bool], int]
"""`encoder.record_size_bound`: bytes of key and value, headers, and whether the caller chose the time."""

_MAX_ROWS = 65_536  # rows converted to Python objects at once, which bounds memory for large tables


class Kernels:
    """*Thread-safe.* The compiled functions, once they pay off. One per process, whose rows it counts."""

    def __init__(self, warm_up_rows: int = WARM_UP_ROWS) -> None:
        self._left = warm_up_rows
        self._lock = threading.Lock()

    def ready(self, rows: int) -> bool:
        """Whether to use compiled code for this many rows; counts them if not."""
        with self._lock:
            if self._left > 0:
                self._left -= rows
                return False
        return all(kernel(name)[0] is not None for name in ("encode_records", "choose_partitions"))


KERNELS = Kernels()


class Cells(msgspec.Struct, frozen=True):
    """*Immutable.* Start and length of each cell in a column's data; length -1 is null."""

    column: Any  # keeps the memory alive
    data: int  # address of the column's data
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, column: Any) -> Cells:
        import numpy as np
        import pyarrow as pa

        kind = np.int64 if column.type in (pa.large_binary(), pa.large_string()) else np.int32
        _, places, data = column.buffers()
        if places is None or not len(column):
            return cls(column, 0, _frozen(np.zeros(0, np.int64)), _frozen(np.zeros(0, np.int64)))
        at = column.offset * kind().itemsize
        edges = np.frombuffer(places, kind, len(column) + 1, at).astype(np.int64)
        lengths = np.diff(edges)
        if column.null_count:
            lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
        return cls(column, data.address if data is not None else 0, _frozen(edges[:-1]), _frozen(lengths))

    def bytes_of(self, rows: np.ndarray) -> list[bytes | None]:
        return [
            cell if cell is None or isinstance(cell, bytes) else cell.encode()
            for cell in self.column.take(rows).to_pylist()
        ]


class ArrowRows:
    """*Immutable.* Some rows of one Arrow batch: the cells ``rows``, with ``times`` and ``sizes`` (bounds in
    bytes). ``partitions``: the caller's choices or `ANYWHERE`. ``one_time``: all times are the same.
    """

    def __init__(
        self,
        values: Cells,
        keys: Cells | None,
        rows: np.ndarray,
        times: np.ndarray,
        sizes: np.ndarray,
        partitions: np.ndarray | None = None,
        *,
        one_time: bool = False,
    ) -> None:
        self.values, self.keys, self.partitions = values, keys, partitions
        self._rows, self._times, self._sizes = _frozen(rows), _frozen(times), sizes
        self._one_time = one_time

    @cached_property
    def _ends(self) -> np.ndarray:
        return self._sizes.cumsum()

    @classmethod
    def of(
        cls, values: Cells, keys: Cells | None, times: np.ndarray | int, partitions: np.ndarray | None = None
    ) -> ArrowRows | None:
        """All rows; ``times`` may be one for all. None if times are too far apart."""
        import numpy as np

        count = len(values.lengths)
        content = np.maximum(values.lengths, 0)
        if keys is not None:
            content += np.maximum(keys.lengths, 0)
        sizes = content + np.where(
            content < encoder.SMALL_CONTENT, encoder.SMALL_OVERHEAD, encoder.BIG_OVERHEAD
        )
        if one_time := isinstance(times, int):
            times = np.full(count, times, np.int64)
        else:
            sizes += encoder.OWN_TIME_BYTES
            if count and not -_FARTHEST_TIME < int(times.min()) <= int(times.max()) < _FARTHEST_TIME:
                return None
        return cls(values, keys, np.arange(count), times, sizes, partitions, one_time=one_time)

    def __len__(self) -> int:
        return len(self._rows)

    def size(self, start: int, stop: int) -> int:
        return int(self._ends[stop - 1]) - (int(self._ends[start - 1]) if start else 0)

    def most_within(self, start: int, stop: int, room: int) -> int:
        before = int(self._ends[start - 1]) if start else 0
        return min(max(int(self._ends.searchsorted(before + room, "right")), start), stop)

    def largest(self) -> int:
        return int(self._sizes.max()) if len(self) else 0

    def part(self, start: int, stop: int) -> ArrowRows:
        """Rows ``start`` to ``stop``, without their choice of partition."""
        return self._select(slice(start, stop))

    def times(self) -> list[int]:
        if self._one_time:
            return [int(self._times[0])] * len(self) if len(self) else []
        times: list[int] = self._times.tolist()
        return times

    def lists(self) -> tuple[list[bytes | None], list[bytes | None] | None]:
        keys = self.keys.bytes_of(self._rows) if self.keys is not None else None
        return self.values.bytes_of(self._rows), keys

    def by_partition(
        self, count: int, *, by_key: bool, otherwise: int = ANYWHERE
    ) -> list[tuple[int, ArrowRows]]:
        """Rows of each of ``count`` partitions, in order: as chosen, else by key, else ``otherwise``."""
        import numpy as np

        chosen = np.full(len(self), otherwise, np.int64)
        if self.keys is not None and by_key:
            _compiled("choose_partitions")(self.keys.data, self.keys.starts, self.keys.lengths, count, chosen)
        if self.partitions is not None:
            chosen = np.where(self.partitions == ANYWHERE, chosen, self.partitions)
        if not len(self):
            return []
        if (chosen == chosen[0]).all():
            return [(int(chosen[0]), self)]
        if chosen.min() >= 0 and chosen.max() < _FEW:
            chosen = chosen.astype(np.uint16)  # counting sort: 0.04 instead of 0.21 ms for 10,000 rows
        order = np.argsort(chosen, kind="stable")
        numbers = chosen[order]
        edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(self)]
        return [(int(numbers[start]), self._select(order[start:stop])) for start, stop in pairwise(edges)]

    def encoded(self, base_time: int, delta: int) -> memoryview:
        """The rows as uncompressed records of a batch; the first has offset delta ``delta``."""
        import numpy as np

        out = np.empty(int(self._sizes.sum()) + _MORE_BYTES * len(self), np.uint8)
        keys = self.keys or Cells(None, 0, _frozen(np.zeros(0, np.int64)), _frozen(np.zeros(0, np.int64)))
        written = _compiled("encode_records")(
            self.values.data, self.values.starts, self.values.lengths,
            keys.data, keys.starts, keys.lengths,
            self._rows, self._times, base_time, delta, out,
        )  # fmt: skip
        out.resize(written, refcheck=False)  # in place: frees the unused rest of the bound
        return out.data

    def _select(self, chosen: Any) -> ArrowRows:
        rows = self._rows[chosen]
        times = self._times[: len(rows)] if self._one_time else self._times[chosen]
        return ArrowRows(self.values, self.keys, rows, times, self._sizes[chosen], one_time=self._one_time)


def can_stay(schema: pa.Schema) -> bool:
    """Whether rows can be encoded from Arrow: plain cells and no headers."""
    import pyarrow as pa

    plain = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
    return "headers" not in schema.names and all(
        field.type in plain for field in schema if field.name in ("value", "key")
    )


def _compiled(name: KernelName) -> Kernel:
    found, why = kernel(name)
    if found is None:
        raise KafkaError(f"no compiled code: {why}")
    return found


def _frozen(numbers: np.ndarray) -> np.ndarray:
    """Contiguous and read-only, as the kernels require."""
    import numpy as np

    found: np.ndarray = np.ascontiguousarray(numbers, np.int64)
    found = found.view()
    found.flags.writeable = False
    return found


@dataclass(eq=False, repr=False)
class Columns:
    """*Not thread-safe.* Columns of equal length; all but values and times may be missing."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    times: list[int]
    headers: list[Sequence[Header]] | None
    partitions: list[int | None] | None
    own_times: bool
    size_bound: SizeBound = encoder.record_size_bound

    def __post_init__(self) -> None:
        self._ends = list(accumulate(self._sizes()))

    def __len__(self) -> int:
        return len(self.values)

    def size(self, start: int, stop: int) -> int:
        """Upper bound for rows ``start`` to ``stop``, in bytes before compression."""
        return self._ends[stop - 1] - (self._ends[start - 1] if start else 0)

    def most_within(self, start: int, stop: int, room: int) -> int:
        """End of the longest run of rows from ``start`` within ``room`` bytes."""
        before = self._ends[start - 1] if start else 0
        return bisect_right(self._ends, before + room, start, stop)

    def largest(self) -> int:
        return max((b - a for a, b in pairwise([0, *self._ends])), default=0)

    def select(self, rows: Sequence[int]) -> Columns:
        return Columns(
            [self.values[row] for row in rows],
            [self.keys[row] for row in rows] if self.keys is not None else None,
            [self.times[row] for row in rows],
            [self.headers[row] for row in rows] if self.headers is not None else None,
            None,
            self.own_times,
            self.size_bound,
        )

    def _sizes(self) -> Iterator[int]:
        contents = [len(value) if value is not None else 0 for value in self.values]
        if self.keys is not None:
            contents = [
                size + (len(key) if key is not None else 0)
                for size, key in zip(contents, self.keys, strict=True)
            ]
        own = self.own_times
        if self.headers is None:
            # Overhead grows with content, so the largest row's bounds all.
            most = max(contents, default=0)
            overhead = self.size_bound(most, (), own) - most
            return (size + overhead for size in contents)
        return (
            self.size_bound(size, headers, own) for size, headers in zip(contents, self.headers, strict=True)
        )


Rows: TypeAlias = Columns | ArrowRows  # rows as lists of Python objects, or in their Arrow batch


def arrow_columns(
    data: pa.Table | pa.RecordBatch,
    now_ms: int,
    size_bound: SizeBound = encoder.record_size_bound,
    *,
    record_batches: bool = False,
    kernels: Kernels | None = None,
) -> Iterator[Rows]:
    """The rows of an Arrow table or batch, at most 65,536 at a time. Raises `InvalidRecord`.

    Columns ``value`` (binary or string; required), ``key`` (the same), ``headers`` (list of key and value),
    ``timestamp`` (timestamp, or milliseconds as int64) and ``partition`` (integer). Rows without a time get
    ``now_ms``. If the format is ``record_batches``, rows stay in Arrow if ``kernels`` can encode them.
    """
    names = data.schema.names
    unknown = [name for name in names if name not in _ALLOWED]
    if unknown or "value" not in names or len(set(names)) != len(names):
        raise InvalidRecord(
            f"columns {', '.join(names)} cannot be sent; value is required, also allowed are "
            f"{', '.join(_ALLOWED[1:])}, each once"
        )
    batches = data.to_batches(max_chunksize=_MAX_ROWS) if hasattr(data, "to_batches") else [data]
    stay = record_batches and can_stay(data.schema)
    kernels = kernels or KERNELS
    for batch in batches:
        for start in range(0, batch.num_rows, _MAX_ROWS):
            part = batch.slice(start, _MAX_ROWS)
            rows = _staying(part, now_ms) if stay and kernels.ready(part.num_rows) else None
            yield rows if rows is not None else _columns(part, now_ms, size_bound)


def _staying(batch: pa.RecordBatch, now_ms: int) -> ArrowRows | None:
    import numpy as np

    found = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
    numbers: dict[str, Any] = {}
    for name, read, default in (("timestamp", _milliseconds, now_ms), ("partition", _whole, ANYWHERE)):
        if name in found:
            filled = read(found[name]).fill_null(default)
            numbers[name] = filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    keys = Cells.of(found["key"]) if "key" in found else None
    times, partitions = numbers.get("timestamp", now_ms), numbers.get("partition")
    return ArrowRows.of(Cells.of(found["value"]), keys, times, partitions)


def _columns(batch: pa.RecordBatch, now_ms: int, size_bound: SizeBound) -> Columns:
    found = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
    times = _milliseconds(found["timestamp"]).to_pylist() if "timestamp" in found else None
    keys = _bytes("key", found["key"]) if "key" in found else None
    return Columns(
        _bytes("value", found["value"]),
        keys if keys is None or any(key is not None for key in keys) else None,
        [now_ms] * batch.num_rows if times is None else [now_ms if t is None else t for t in times],
        _headers(found["headers"]) if "headers" in found else None,
        _whole(found["partition"]).to_pylist() if "partition" in found else None,
        own_times=times is not None,
        size_bound=size_bound,
    )


def _bytes(name: str, column: Any) -> list[bytes | None]:
    """Cells of a binary or string column, sliced from its buffer: faster than Arrow's conversion."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind) or kind in (pa.string_view(), pa.binary_view()):
        column = column.cast(pa.large_binary())
        kind = column.type
    if pa.types.is_null(kind):
        return [None] * len(column)
    wide = kind in (pa.large_binary(), pa.large_string())
    if not wide and kind not in (pa.binary(), pa.string()):
        raise InvalidRecord(f"column {name} is of type {kind}; it must be binary or string")
    if not len(column):
        return []
    _, offsets_buffer, data = column.buffers()
    start, count = column.offset, len(column)
    cells_at = memoryview(offsets_buffer).cast("B")
    offsets = (cells_at.cast("q") if wide else cells_at.cast("i"))[start : start + count + 1].tolist()
    first = offsets[0]
    raw = bytes(memoryview(data)[first : offsets[-1]]) if data is not None else b""
    cells: list[bytes | None] = [raw[a - first : b - first] for a, b in pairwise(offsets)]
    if column.null_count:
        for row, valid in enumerate(column.is_valid().to_pylist()):
            if not valid:
                cells[row] = None
    return cells


def _milliseconds(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        # Truncated to milliseconds, as in Java clients and Spark.
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    if not pa.types.is_integer(column.type):
        raise InvalidRecord(f"column timestamp is of type {column.type}; it must be timestamp or int64")
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as e:
        raise InvalidRecord(f"column timestamp: {e}") from None


def _whole(column: Any) -> Any:
    import pyarrow as pa

    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise InvalidRecord(f"column partition is of type {column.type}; it must be an integer")
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as e:
        raise InvalidRecord(f"column partition: {e}") from None


def _headers(column: Any) -> list[Sequence[Header]] | None:
    if not len(column) or column.null_count == len(column):
        return None
    try:
        return [
            encoder.own_headers((header["key"], header["value"]) for header in cell) if cell else ()
            for cell in column.to_pylist()
        ]
    except (KeyError, TypeError) as e:
        raise InvalidRecord(
            f"column headers is of type {column.type}; it must be a list of structs of key and value ({e})"
        ) from None
