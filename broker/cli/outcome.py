"""How a command ends: its exit code, and one line on standard error where it has not done its work."""

from __future__ import annotations

import sys

PROGRAM = "kafkalog-broker"

DONE, FAILED, MISUSED = 0, 1, 2
"""Done; could not be done, or found damage; the user must change arguments or configuration."""


def say(line: str) -> None:
    """A line of words, on standard error: standard output is for what was asked for."""
    sys.stderr.write(f"{PROGRAM}: {line}\n")
    sys.stderr.flush()


def fail(error: Exception, code: int) -> int:
    """Say what went wrong in one line; returns ``code``."""
    say(" ".join(str(error).split()) or type(error).__name__)
    return code
