"""Import paths that the documentation showed once still work, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_the_mirror_is_still_found_where_it_was() -> None:
    sys.modules.pop("pyspark_kafkalog.consumer.mirror", None)
    with pytest.warns(DeprecationWarning, match=r"import pyspark_kafkalog\.classic\.mirror\.mirror"):
        old = importlib.import_module("pyspark_kafkalog.consumer.mirror")
    new = importlib.import_module("pyspark_kafkalog.classic.mirror.mirror")
    assert old.Mirror is new.Mirror
