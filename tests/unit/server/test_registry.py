from __future__ import annotations

from pathlib import Path

import pytest

import kafkalog_broker.server.handlers
from kafkalog_broker.server.dispatch import REGISTRY, handles
from pyspark_kafkalog.protocol.exchange import ApiKey


def test_every_handler_has_a_file_of_its_own_name() -> None:
    folder = Path(kafkalog_broker.server.handlers.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {key.name.lower() for key in REGISTRY}
    assert set(kafkalog_broker.server.handlers.__all__) == files


def test_an_api_cannot_have_two_handlers() -> None:
    with pytest.raises(ValueError, match="FETCH has a handler already"):
        handles(ApiKey.FETCH, versions=(4, 12), needs=())(lambda request, ctx: None)
