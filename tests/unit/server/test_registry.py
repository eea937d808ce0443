from __future__ import annotations

from pathlib import Path

import pytest

import kafkalog_broker.server.handlers
from kafkalog_broker.server.dispatch import REGISTRY, handles
from pyspark_kafkalog.protocol.exchange import APIS, ApiKey


def test_a_handler_has_its_apis_name_in_the_file_of_its_theme() -> None:
    for key, served in REGISTRY.items():
        assert served.handler.__name__ == key.name.lower()
        assert served.handler.__module__ == f"{kafkalog_broker.server.handlers.__name__}.{APIS[key].theme}"


def test_the_handlers_have_the_themes_of_the_messages() -> None:
    folder = Path(kafkalog_broker.server.handlers.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {api.theme for api in APIS.values()}
    assert files == {served.handler.__module__.rpartition(".")[2] for served in REGISTRY.values()}


def test_an_api_cannot_have_two_handlers() -> None:
    with pytest.raises(ValueError, match="FETCH has a handler already"):
        handles(ApiKey.FETCH, (4, 12))(lambda request, ctx: None)
