"""What can go wrong with a load. Each message says what to do; trying again at once cures none of these."""

from __future__ import annotations

from pyspark_kafkalog.errors import KafkaError


class LoadError(KafkaError):
    """A load, or its ledger, cannot go on; what was committed before stays as it is."""


class LoadBusy(LoadError):
    """Another driver holds this load and still runs."""


class LostRace(LoadError):
    """Another driver created the same record first; its record counts."""


class DamagedRecord(LoadError):
    """A record of the ledger is missing, torn, edited, or does not fit the others."""


class NewerFormat(LoadError):
    """A record written by a newer release, in a format that this one does not know."""


class ForeignCluster(LoadError):
    """The ledger belongs to another cluster."""


class TopicRecreated(LoadError):
    """A topic is not the one that was loaded before: its id changed, or its log ends before the position."""


class OffsetsAgedOut(LoadError):
    """Retention deleted offsets that were never loaded."""


class ReceiptMismatch(LoadError):
    """Two attempts at the same offsets saw different records, or a receipt is of another plan."""


class IncompleteLoad(LoadError):
    """Not every range of the plan has a receipt: it was not read to its end."""


class TooManyDead(LoadError):
    """More records could not be used than ``max_dead`` allows."""


class DatabaseFailed(LoadError):
    """A database that a load writes to refused a statement, or could not be reached."""


class UnstorableValue(LoadError):
    """A value cannot be brought into the form in which the database keeps its column."""


class UnsafeStore(LoadError):
    """A place that cannot keep a ledger: it has no exclusive create, or none that can be relied on."""
