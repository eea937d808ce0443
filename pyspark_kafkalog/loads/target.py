"""The interface of a load's targets: files, a database, a Delta or Iceberg table.

`Load.write` passes a `Work` to the target, and the commit records the `LoadOutput` it returns. Targets know
nothing of locks and commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.ledger.commit import LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Work:
    """What to write, and for which load.

    ``frame`` has the rows; with ``is_whole`` exactly the load's records, so that their number can be compared
    with the receipts. ``run`` names this attempt; a replay has another. ``has_receipts``: whether tasks leave
    receipts. ``before`` lists this block's earlier outputs. ``source`` has the options of the plan, for a
    target whose tasks read the topic themselves.
    """

    spark: SparkSession
    ledger: Ledger
    plan: Plan
    run: str
    frame: DataFrame
    is_whole: bool
    has_receipts: bool
    before: tuple[LoadOutput, ...]
    source: BatchOptions


class Target(Protocol):
    """A place that loads write to. *Belongs to one driver; used once in a block.*"""

    @property
    def mode(self) -> str:
        """The mode of the commit: one of `LOAD_MODES`."""
        ...

    def check(self, work: Work, /) -> None:
        """Raise `InvalidConfig` or `LoadError` if the rows cannot be written, before writing any."""
        ...

    def find(self, work: Work, /) -> LoadOutput | None:
        """The complete, durable output of an earlier attempt at this plan, which lacks only the commit."""
        ...

    def write(self, work: Work, /) -> LoadOutput:
        """Write the rows; repeated for the same plan, the result is that of one attempt.

        After a `LoadError` the plan stays pending.
        """
        ...
