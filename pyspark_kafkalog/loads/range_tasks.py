"""What tasks that write themselves have in common, files or a database: each reads one range of the plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from msgspec import structs

from pyspark_kafkalog.datasource.batch.load_reader import LoadInputPartition, LoadReader
from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.receipts import Receipt
from pyspark_kafkalog.loads.engines.engine import Tell

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.loads.file_table import Work


@dataclass(frozen=True)
class RangeTasks:
    """Pickled into each task, so ``plan`` has no partitions. ``ledger_at``: None out of tasks' reach."""

    reader: LoadReader
    plan: Plan
    parts: tuple[LoadInputPartition, ...]
    load_name: str
    ledger_at: str | None
    run: str

    @classmethod
    def of(cls, work: Work, *more: str) -> RangeTasks:
        """The tasks of a load, which also read the columns ``more``."""
        if work.source.load is None:
            raise LoadError("the options have no loadName")
        mine = structs.replace(work.source.load, plan=work.plan.number, run=work.run)
        columns = dict.fromkeys((*work.source.row_columns, *more))
        reader = LoadReader(work.source, tuple(columns), mine)
        return cls(
            reader=reader,
            plan=replace(work.plan, partitions=()),
            parts=cast("tuple[LoadInputPartition, ...]", tuple(reader.partitions())),
            load_name=work.ledger.name,
            ledger_at=work.ledger.offsets_path if work.has_receipts else None,
            run=work.run,
        )

    @property
    def ledger(self) -> Ledger | None:
        return None if self.ledger_at is None else Ledger.at(self.ledger_at, self.load_name)

    def read(
        self, index: int, take: Callable[[pa.RecordBatch], int], tell: Tell, *, run: str = ""
    ) -> tuple[Receipt, int]:
        """Read range ``index`` to its end; returns the receipt, by ``run``'s task if given and not yet
        stored, and the sum of ``take``. ``tell`` is called after each batch with
        an offset column.
        """
        part, count = self.parts[index], 0
        rows = self.reader.rows_of(part, lambda: self.plan, run=run)
        with closing(rows):
            while True:
                try:
                    batch = next(rows)
                except StopIteration as end:
                    receipt: Receipt = end.value
                    return receipt, count
                count += take(batch)
                if "offset" in batch.schema.names:
                    tell(batch.column("offset")[-1].as_py() + 1 - part.start)

    def leave(self, receipt: Receipt, index: int) -> None:
        """Store the receipt, if tasks reach the ledger."""
        if self.ledger is not None:
            self.ledger.leave_receipt(receipt, index)
