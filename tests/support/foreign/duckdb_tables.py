"""DuckDB's own readers of Delta and Iceberg, in a process of their own.

``python -m tests.support.foreign.duckdb_tables`` fetches them; `make interop` does so too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.foreign.fetched import ROOT, announce, fetched

_PINS = ROOT / "tests" / "peers" / "duckdb" / "requirements.txt"

_QUERY = """
import json, pathlib, sys
import duckdb
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in ("avro", "delta", "iceberg"):
    (file,) = pathlib.Path(sys.argv[1]).glob(f"duckdb_extension_{name}/extensions/*/{name}.duckdb_extension")
    connection.execute(f"LOAD '{file}'")
print(json.dumps([connection.execute(query).fetchall() for query in sys.argv[2:]], default=str))
"""


def duckdb_tables() -> Path:
    """The directory to put on PYTHONPATH. Raises `NotAvailable` without PyPI."""
    install = [sys.executable, *"-m pip install --quiet --no-deps --target . -r".split(), _PINS.name]
    return fetched("duckdb-tables", "DuckDB's readers of Delta and Iceberg", [_PINS], install)


def answers_to(*queries: str) -> list[list[list[Any]]]:
    """The rows that DuckDB answers to each, in which tables are ``delta_scan('path')`` and
    ``iceberg_scan('metadata file')``; what JSON lacks comes as text. Raises `NotAvailable`, and
    `AssertionError` with DuckDB's error.
    """
    directory = duckdb_tables()
    command = [sys.executable, "-c", _QUERY, str(directory), *queries]
    ran = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(directory)}, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found: list[list[list[Any]]] = json.loads(ran.stdout)
    return found


if __name__ == "__main__":
    announce("DuckDB's readers of Delta and Iceberg", duckdb_tables)
