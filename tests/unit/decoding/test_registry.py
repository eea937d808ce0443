"""The client of a schema registry, against one that speaks real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_kafkalog.decoding import schema_registry as registries
from pyspark_kafkalog.decoding.schema_registry import Registry, RegistryError, Schema
from pyspark_kafkalog.errors import InvalidConfig
from tests.support.foreign.schema_registry import SchemaRegistry, running_registry


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(registries, "_PAUSE_SECONDS", 0.0)
    with running_registry() as running:
        yield running


def test_a_schema_is_found_by_its_id_and_one_that_is_not_there_is_none(server: SchemaRegistry) -> None:
    server.add('"long"', id=7)
    server.add("syntax", id=8, kind="PROTOBUF")
    registry = Registry(server.url)
    assert registry.by_id(7) == Schema('"long"')
    assert registry.by_id(8) == Schema("syntax", "PROTOBUF")
    assert registry.by_id(9) is None
    assert server.asked == ["/schemas/ids/7", "/schemas/ids/8", "/schemas/ids/9"]


def test_the_newest_of_a_subject_comes_with_what_it_refers_to_before_it(server: SchemaRegistry) -> None:
    server.add('"a"', id=1, subject="a/b")
    server.add('"b"', id=2, subject="b", references=[{"name": "a", "subject": "a", "version": 1}])
    server.add('"a"', id=1, subject="a")
    refers = [{"name": n, "subject": n, "version": 1} for n in ("b", "a")]
    server.add('"c"', id=3, subject="c", references=refers)
    assert Registry(server.url).latest("c") == Schema('"c"', "AVRO", ('"a"', '"b"'))
    with pytest.raises(RegistryError, match="has no version latest of subject 'nobody'"):
        Registry(server.url).latest("nobody")


def test_a_registry_that_fails_is_asked_again_and_given_up_at_last(server: SchemaRegistry) -> None:
    server.add('"long"', id=7)
    server.failures = [503, 429]
    assert Registry(server.url).by_id(7) == Schema('"long"')
    server.failures = [500] * 3
    with pytest.raises(RegistryError, match=r"/schemas/ids/7 answered 500"):
        Registry(server.url).by_id(7)
    assert server.asked == ["/schemas/ids/7"] * 6
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:1/schemas/ids/7: .*refused"):
        Registry("http://127.0.0.1:1").by_id(7)


def test_user_and_password_are_sent_and_never_shown(server: SchemaRegistry) -> None:
    server.add('"long"', id=7)
    server.login = "me:s3cret@x"
    with_login = server.url.replace("http://", "http://me:s3cret%40x@")
    assert Registry(with_login).by_id(7) == Schema('"long"')
    with pytest.raises(InvalidConfig, match="answered 401") as refused:
        Registry(with_login.replace("s3cret", "other")).by_id(7)
    assert "other" not in str(refused.value)
    assert server.asked == ["/schemas/ids/7"] * 2


def test_the_next_server_of_a_list_is_asked_where_one_is_down_and_first_from_then_on(
    server: SchemaRegistry,
) -> None:
    server.add('"long"', id=7)
    server.add('"int"', id=8)
    server.login = "me:a,b"
    last = server.url.replace("http://", "http://me:a,b@")
    with running_registry() as first:
        first.failures = [503]
        registry = Registry(f"{first.url}, http://127.0.0.1:1/,{last}")
        assert [registry.by_id(7), registry.by_id(8)] == [Schema('"long"'), Schema('"int"')]
        assert (first.asked, registry.url) == (["/schemas/ids/7"], server.url)
    server.failures = [503] * 3
    with pytest.raises(RegistryError, match=r"^(.*ids/9 answered 503.*; )(.*:1/schemas/ids/9: .*refused.*)"):
        registry.by_id(9)


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081",
        "file:///etc/passwd",
        "http://",
        "ftp://host",
        "",
        "http://a:1,ftp://b",
        "http://a:1,b:2",
    ],
)
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig, match="http://host:port"):
        Registry(url)


def test_a_server_that_returns_no_schemas_is_not_a_registry(server: SchemaRegistry) -> None:
    server._by_id[1] = {"hello": "world"}
    with pytest.raises(RegistryError, match="without a schema: is it a schema registry"):
        Registry(server.url).by_id(1)
