"""Our reader of JAAS entries against Kafka's own, on texts made of everything that its grammar knows."""

from __future__ import annotations

import base64
import random
import subprocess
from pathlib import Path

import pytest

from pyspark_kafkalog.security.jaas import parse_jaas
from tests.support.foreign.apache_kafka import java

JUDGE = Path(__file__).parent / "java" / "JaasJudge.java"
PIECES = [
    "Module", "required", "OPTIONAL", "user", "password", "a.b-c", "$x", "_y", "\u00e9t\u00e9", "\u20ac",
    "=", "=", "=", ";", ";", '"', '"', "'", "\\", '\\"', "\\n", "\\101", "\\477", "\\8", "/", "//", "/*",
    "*/", "*",
    "\n", "\r", "\t", " ", " ", " ", "\x01", "\x80", "\x9f", "\xa0", "1", "-1", "-", ".", "-.5", "1.2.3",
    "{", "}", "#", "+", ":", ",", 'k="v"', "k='v w'", 'username="u" password="p"',
]  # fmt: skip
NULL_KEY = " bnVsbA="
TEXTS = 20_000


def texts() -> list[str]:
    chosen = random.Random(16)
    found = []
    for number in range(TEXTS):
        pieces = chosen.choices(PIECES, k=chosen.randint(0, 14))
        body = "".join(piece + chosen.choice(["", " "]) for piece in pieces)
        # Random texts are seldom whole entries: most here begin as one, and end.
        found.append(body if number % 4 == 0 else f"M required {body}" + ";" * (number % 4 > 1))
    return found


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def ours(text: str) -> str:
    try:
        entry = parse_jaas(text)
    except ValueError:
        return "refused"
    options = sorted(entry.options.items(), key=lambda option: option[0].encode("utf-16-be"))
    return " ".join(["ok", encoded(entry.module), *(f"{encoded(k)}={encoded(v)}" for k, v in options)])


def test_both_read_the_same_and_refuse_the_same(kafka_jars: Path) -> None:
    asked = texts()
    lines = "".join(base64.b64encode(text.encode()).decode() + "\n" for text in asked)
    done = subprocess.run(
        java(kafka_jars, str(JUDGE)), input=lines, capture_output=True, text=True, timeout=120, check=False
    )
    if "no module found: jdk.compiler" in done.stderr or "jdk.compiler not found" in done.stderr:
        pytest.skip("this Java has no compiler")
    theirs = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "refused "))]
    assert len(theirs) == len(asked), done.stderr[-2000:]
    # Kafka takes a sign in a key's place as the key null, which nobody means: for us it is an error.
    taken = [answer if answer.startswith("ok") and NULL_KEY not in answer else "refused" for answer in theirs]
    assert [case for case in zip(asked, map(ours, asked), taken, strict=True) if case[1] != case[2]] == []
    assert sum(answer.startswith("ok") for answer in theirs) > 500
