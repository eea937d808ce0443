"""The child of `spark_environments.SparkProcess`: a session, and functions called by name.

An order is a line of JSON, ``{"do": "package.module:name", ...arguments}``; the answer another, with
``value`` or ``error``. It ends with its input.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from tests.support.spark.spark_session import running_session


def _called(spark: Any, order: dict[str, Any]) -> Any:
    module, _, name = order.pop("do").partition(":")
    order.pop("client")
    return getattr(importlib.import_module(module), name)(spark, **order)


def main(configs: dict[str, str]) -> None:
    """The child's life: orders in, answers out."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints, prints to the log
    with running_session(configs) as spark:
        for line in sys.stdin:
            try:
                answer = {"value": _called(spark, json.loads(line))}
            except Exception as e:
                answer = {"error": f"{type(e).__name__}: {e}"[:8000]}
            answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
