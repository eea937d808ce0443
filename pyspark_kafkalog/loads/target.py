"""What a load can write to, behind one small face: files, a database, a table of Delta or Iceberg.

`Load.write` makes a `Work` of the load and hands it to the target; what the target says it wrote stands in
the commit. A target knows nothing of locks and commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions
from pyspark_kafkalog.ledger.commit import Output
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be written, and whose it is.

    ``frame`` are the rows; ``is_whole`` says that they are the load's own, all of them, so that their number
    can be compared with what the tasks read. ``run`` is this attempt's name, another one in a replay;
    ``has_receipts`` whether tasks leave any. ``before`` is what this block wrote already.
    ``source`` are the options that the plan was made with, for a target whose tasks read it themselves.
    """

    spark: SparkSession
    ledger: Ledger
    plan: Plan
    run: str
    frame: DataFrame
    is_whole: bool
    has_receipts: bool
    before: tuple[Output, ...]
    source: BatchOptions


class Target(Protocol):
    """A place that loads write to. *Belongs to one driver; called once in a block.*"""

    @property
    def mode(self) -> str:
        """The commit's mode where this was written: one of `LOAD_MODES`."""
        ...

    def check(self, work: Work, /) -> None:
        """Refuse what cannot be written there, before anything is.

        Raises:
            InvalidConfig, LoadError: the text says what to do.
        """
        ...

    def find(self, work: Work, /) -> Output | None:
        """What an earlier attempt at this very plan wrote whole, and nobody can take back; else None.

        Then nothing is read or written again: the block's end only makes the commit that was missing.
        """
        ...

    def write(self, work: Work, /) -> Output:
        """Write the rows; done again for the same plan, it leaves what one attempt would have left.

        Raises:
            LoadError: it failed, or something else was there; the plan stays.
        """
        ...
