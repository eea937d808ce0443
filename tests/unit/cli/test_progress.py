from __future__ import annotations

import io
import sys

import pytest

from pyspark_kafkalog.cli.terminal_output import counted, progress, size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_900, "999.9 kB"),
        (2_500_000, "2.5 MB"),
        (10**12, "1.0 TB"),
        (10**16, "10000.0 TB"),
    ],
)
def test_sizes_are_as_people_read_them(byte_count: int, text: str) -> None:
    assert size(byte_count) == text


def test_one_thing_is_not_a_plural() -> None:
    assert [counted(n, "record") for n in (0, 1, 1200)] == ["0 records", "1 record", "1,200 records"]


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    def drawn(error: io.StringIO, *, quiet: bool = False) -> str:
        monkeypatch.setattr(sys, "stderr", error)
        with progress("flights", 10, quiet=quiet) as show:
            show(7)
        return error.getvalue()

    assert drawn(io.StringIO()) == drawn(Terminal(), quiet=True) == ""
    shown = drawn(Terminal())
    assert "flights" in shown
    assert "7/10" in shown
