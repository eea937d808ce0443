"""The interface of what a load can write to: files, a database, a table of Delta or Iceberg.

`Load.write` passes a `Work` to the target, and the commit records what the target says it wrote. A target
knows nothing of locks and commits.
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

    ``frame`` has the rows; with ``is_whole`` they are exactly the records of the load, so that their number
    can be compared with the receipts. ``run`` names this attempt, and a replay has another;
    ``has_receipts``: whether tasks leave any. ``before`` is what this block wrote already. ``source`` has the
    options of the plan, for a target whose tasks read it themselves.
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
        """Check that the rows can be written, before any is.

        Raises:
            InvalidConfig, LoadError: they cannot; the message says what to do.
        """
        ...

    def find(self, work: Work, /) -> LoadOutput | None:
        """What an earlier attempt at this plan wrote completely and durably; None if there is none.

        If there is, nothing is read or written again, and the end of the block only adds the missing commit.
        """
        ...

    def write(self, work: Work, /) -> LoadOutput:
        """Write the rows; repeated for the same plan, the result is that of one attempt.

        Raises:
            LoadError: it failed, or the place has other data; the plan stays pending.
        """
        ...
