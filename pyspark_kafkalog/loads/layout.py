"""What the records of a ledger are called, relative to its directory. Pure."""

from __future__ import annotations

import re

from pyspark_kafkalog.types import TopicPartition

LOAD = "load.json"
HEAD = "HEAD.json"
LOCK = ".lock"
PLANS = "plans"
COMMITS = "commits"
RECEIPTS = "receipts"
SUMMARIES = "summaries"
RUNS = "runs"
MIRROR = "offsets"

_NUMBERED = re.compile(r"(\d{8,})\.json")


def plan_name(number: int) -> str:
    """The record of a plan."""
    return f"{PLANS}/{number:08d}.json"


def commit_name(number: int) -> str:
    """The record of a commit."""
    return f"{COMMITS}/{number:08d}.json"


def receipts_name(plan: int) -> str:
    """The directory of a plan's receipts."""
    return f"{RECEIPTS}/{plan:08d}"


def receipt_name(plan: int, where: TopicPartition, start: int, end: int) -> str:
    """The record of a receipt: a second attempt at the same range has the same name."""
    return f"{receipts_name(plan)}/{where.topic}/{where.number}/{start}-{end}.json"


def summary_name(plan: int) -> str:
    """The record that takes the place of a plan's receipts."""
    return f"{SUMMARIES}/{plan:08d}.json"


def marks_name(plan: int) -> str:
    """The directory of the marks of a plan's runs."""
    return f"{RUNS}/{plan:08d}"


def mark_name(plan: int, run: str, index: int) -> str:
    """The mark that a run read the range of this index."""
    return f"{marks_name(plan)}/{run}/{index}"


def mirror_name(broker: int, topic: str, partition: int) -> str:
    """The text file with the next offset of a partition."""
    return f"{MIRROR}/part-{broker}-{topic}-{partition}"


def number_of(name: str) -> int | None:
    """The number that a plan's or commit's file is named by; None for another file."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None
