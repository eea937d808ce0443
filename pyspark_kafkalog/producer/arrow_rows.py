"""Rows that stay in their Arrow batch until they are encoded, by compiled code: no Python object for each.

Needs numpy and numba; where they are missing, or for few rows, `columns.Columns` does the same.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.columnar.kernel_cache import Kernel, KernelName, kernel
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.producer.encoder import BIG_OVERHEAD, OWN_TIME_BYTES, SMALL_CONTENT, SMALL_OVERHEAD

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

WARM_UP_ROWS = 200_000
"""Rows that a process encodes in plain Python before it loads numba, which takes as long as those."""

ANYWHERE = -(1 << 63)
"""The partition of rows that may go to any."""

_MORE_BYTES = 16
"""With this, the bound of a row's size covers also a record whose every number has its most bytes."""
_FARTHEST_TIME = 1 << 61
"""Between two times nearer to 0 than this lies a number of 64 bits."""


class Kernels:
    """The compiled functions, once they pay.

    *Thread-safe: the lock guards the count.* One for the process: what it counts is this process's work.
    """

    def __init__(self, warm_up_rows: int = WARM_UP_ROWS) -> None:
        self._left = warm_up_rows
        self._lock = threading.Lock()

    def ready(self, rows: int) -> bool:
        """Whether so many rows are to be encoded by compiled code; if not, they count."""
        with self._lock:
            if self._left > 0:
                self._left -= rows
                return False
        return all(kernel(name)[0] is not None for name in ("encode_records", "choose_partitions"))


KERNELS = Kernels()


@dataclass(frozen=True, slots=True)
class Cells:
    """*Immutable.* Where the cells of a column begin in its data, and how long they are; -1 is null."""

    column: Any
    """Keeps the memory."""
    data: int
    """Address of the column's data."""
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, column: Any) -> Cells:
        """The cells of a binary or string column, also of one whose offsets have 64 bits."""
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
        """Some of the cells as Python objects."""
        return [
            cell if cell is None or isinstance(cell, bytes) else cell.encode()
            for cell in self.column.take(rows).to_pylist()
        ]


class ArrowRows:
    """*Immutable.* Some rows of one Arrow batch, in an order of their own; as `columns.Columns` otherwise.

    ``rows`` are indexes into the cells, ``times`` and ``sizes`` (bounds of the rows' bytes in a record batch)
    belong to those. ``partitions`` are what the caller chose, `ANYWHERE` where nothing; None if nowhere.
    """

    def __init__(
        self,
        values: Cells,
        keys: Cells | None,
        rows: np.ndarray,
        times: np.ndarray,
        sizes: np.ndarray,
        partitions: np.ndarray | None = None,
    ) -> None:
        self.values, self.keys, self.partitions = values, keys, partitions
        self._rows, self._times, self._sizes = _frozen(rows), _frozen(times), sizes
        self._ends = sizes.cumsum()

    @classmethod
    def of(
        cls,
        values: Cells,
        keys: Cells | None,
        times: np.ndarray | int,
        partitions: np.ndarray | None = None,
    ) -> ArrowRows | None:
        """All rows; ``times`` are the caller's, or the one that all have. None if times lie too far apart."""
        import numpy as np

        count = len(values.lengths)
        content = np.maximum(values.lengths, 0)
        if keys is not None:
            content += np.maximum(keys.lengths, 0)
        sizes = content + np.where(content < SMALL_CONTENT, SMALL_OVERHEAD, BIG_OVERHEAD)
        if isinstance(times, int):
            times = np.full(count, times, np.int64)
        else:
            sizes += OWN_TIME_BYTES
            if count and not -_FARTHEST_TIME < int(times.min()) <= int(times.max()) < _FARTHEST_TIME:
                return None
        return cls(values, keys, np.arange(count), times, sizes, partitions)

    def __len__(self) -> int:
        return len(self._rows)

    def size(self, start: int, stop: int) -> int:
        """As `Columns.size`."""
        return int(self._ends[stop - 1]) - (int(self._ends[start - 1]) if start else 0)

    def most_within(self, start: int, stop: int, room: int) -> int:
        """As `Columns.most_within`."""
        before = int(self._ends[start - 1]) if start else 0
        return min(max(int(self._ends.searchsorted(before + room, "right")), start), stop)

    def largest(self) -> int:
        """As `Columns.largest`."""
        return int(self._sizes.max()) if len(self) else 0

    def part(self, start: int, stop: int) -> ArrowRows:
        """Rows ``start`` to ``stop``, which have their partition."""
        return self._select(slice(start, stop))

    def times(self) -> list[int]:
        """The rows' times, in milliseconds."""
        times: list[int] = self._times.tolist()
        return times

    def lists(self) -> tuple[list[bytes | None], list[bytes | None] | None]:
        """Values and keys as Python objects."""
        keys = self.keys.bytes_of(self._rows) if self.keys is not None else None
        return self.values.bytes_of(self._rows), keys

    def by_partition(
        self, count: int, *, by_key: bool, otherwise: int = ANYWHERE
    ) -> list[tuple[int, ArrowRows]]:
        """The rows of each partition, in their order: those that the caller chose, else by the key.

        ``count`` is how many partitions there are; rows that have neither belong to ``otherwise``.
        """
        import numpy as np

        chosen = np.full(len(self), otherwise, np.int64)
        if self.keys is not None and by_key:
            _compiled("choose_partitions")(self.keys.data, self.keys.starts, self.keys.lengths, count, chosen)
        if self.partitions is not None:
            chosen = np.where(self.partitions == ANYWHERE, chosen, self.partitions)
        if len(self) and (chosen == chosen[0]).all():
            return [(int(chosen[0]), self)]
        order = np.argsort(chosen, kind="stable")
        numbers, firsts = np.unique(chosen[order], return_index=True)
        edges = [*firsts.tolist(), len(self)]
        return [
            (number, self._select(order[edges[place] : edges[place + 1]]))
            for place, number in enumerate(numbers.tolist())
        ]

    def encoded(self, base_time: int, delta: int) -> bytes:
        """The rows as records of a batch in which the first has offset ``delta``, uncompressed."""
        import numpy as np

        out = np.empty(int(self._sizes.sum()) + _MORE_BYTES * len(self), np.uint8)
        keys = self.keys or Cells(None, 0, _frozen(np.zeros(0, np.int64)), _frozen(np.zeros(0, np.int64)))
        written = _compiled("encode_records")(
            self.values.data, self.values.starts, self.values.lengths,
            keys.data, keys.starts, keys.lengths,
            self._rows, self._times, base_time, delta, out,
        )  # fmt: skip
        return out[:written].tobytes()

    def _select(self, chosen: Any) -> ArrowRows:
        return ArrowRows(self.values, self.keys, self._rows[chosen], self._times[chosen], self._sizes[chosen])


def can_stay(schema: pa.Schema) -> bool:
    """Whether rows of these columns can be encoded as they are: plain cells and no headers."""
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
    """As the kernels take them: one after the other, and not to be changed."""
    import numpy as np

    found: np.ndarray = np.ascontiguousarray(numbers, np.int64)
    found = found.view()
    found.flags.writeable = False
    return found
