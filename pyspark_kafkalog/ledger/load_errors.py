"""Errors of loads. Each message says what to do; an immediate retry helps with none of them."""

from __future__ import annotations

from pyspark_kafkalog.errors import KafkaError


class LoadError(KafkaError):
    """A load, or its ledger, cannot continue; earlier commits stay as they are."""


class LoadBusy(LoadError):
    """Another driver holds the lock of this load."""


class LostRace(LoadError):
    """Another driver created the same record first; its record is in effect."""


class DamagedRecord(LoadError):
    """A record of the ledger is missing, torn, edited, or contradicts the others."""


class NewerFormat(LoadError):
    """A record in the format of a newer release."""


class ForeignCluster(LoadError):
    """The ledger belongs to another cluster."""


class TopicRecreated(LoadError):
    """A topic was deleted and created again: its id changed, or its log ends before the position."""


class OffsetsAgedOut(LoadError):
    """Retention deleted offsets that were never loaded."""


class ReceiptMismatch(LoadError):
    """Two attempts at the same offsets saw different records, or a receipt is for another plan."""


class IncompleteLoad(LoadError):
    """Not every range of the plan was read to its end."""


class TooManyDead(LoadError):
    """There are more dead letters than ``max_dead`` allows."""


class DatabaseFailed(LoadError):
    """A database refused a statement, or could not be reached."""


class UnstorableValue(LoadError):
    """A value cannot be converted to the type of its column in the database."""


class UnsafeStore(LoadError):
    """A place that cannot hold a ledger: it has no exclusive create, or an unreliable one."""
