"""Runs what failed in the two circles once more, alone; exits with 0 where everything has passed by then.

    second_try.py STATUSES    a file with pytest's exit code for each circle

There is no second try where pytest did more than find failures, where a failure has no test's name (a file
that cannot be collected), or where more than five tests failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CIRCLES = 2
MAX_FAILED = 5
ROOT = Path(__file__).parents[1]
FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"


def reason_against(statuses: list[int], failed: list[str]) -> str:
    """Why there is no second try; empty where there is one."""
    if len(statuses) < CIRCLES:
        return f"{CIRCLES - len(statuses)} of {CIRCLES} circles did not come to pytest's end"
    if set(statuses) - {0, 1}:
        return f"pytest ended with {', '.join(map(str, statuses))}; only 0 and 1 are those of tests"
    if unnamed := [name for name in failed if "::" not in name]:
        return f"not the failure of a test: {', '.join(unnamed)}"
    if not failed:
        return "pytest reports failures but names none"
    if len(failed) > MAX_FAILED:
        return f"{len(failed)} tests failed; at most {MAX_FAILED} are tried again"
    return ""


def last_failed() -> list[str]:
    return sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []


def main(statuses_file: Path) -> int:
    statuses = [int(line) for line in statuses_file.read_text().split()] if statuses_file.exists() else []
    failed = last_failed()
    if statuses == [0] * CIRCLES:
        return 0
    if reason := reason_against(statuses, failed):
        print(f"FAILED, without a second try: {reason}")
        return 1
    again = ["--last-failed", "--last-failed-no-failures", "none", "tests"]
    code = subprocess.run([sys.executable, "-m", "pytest", *again], cwd=ROOT, check=False).returncode
    still = set(last_failed())
    print("What failed was run once more, alone:")
    for name in failed:
        print(f"  {'FAILED again' if name in still else 'passed'}: {name}")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
