"""What is asked of a schema registry, and what its answers mean."""

from __future__ import annotations

import pytest

from firearrow.errors import ConfigError, FirearrowError
from firearrow.spark.bodies.bodies import Undecodable
from firearrow.spark.bodies.registry import Registry, require_frame
from tests.spark.registries import serving_schemas


def test_the_frame_is_five_bytes() -> None:
    assert require_frame(bytes.fromhex("000000000702")) == (7, b"\x02")
    assert require_frame(bytes(5)) == (0, b"")
    for body in (bytes(4), b"\x01\0\0\0\x07\x02"):
        with pytest.raises(Undecodable, match="does not begin with the id of a schema"):
            require_frame(body)


def test_schemas_are_found_by_id_and_by_subject() -> None:
    with serving_schemas({7: '"int"', 9: '"long"'}, {"a/b": 9}) as (url, asked):
        registry = Registry(url)
        assert registry.latest("a/b") == '"long"'
        assert [registry.schema(7), registry.schema(7), registry.schema(8)] == ['"int"'] * 2 + [None]
        assert asked == ["/subjects/a%2Fb/versions/latest", "/schemas/ids/7", "/schemas/ids/8"]
        with pytest.raises(ConfigError, match=rf"schema registry {url} has no subject 'c'$"):
            registry.latest("c")


def test_a_password_is_sent_and_never_shown() -> None:
    with serving_schemas({7: '"int"'}, {}, authorization="Basic dTpwOnc=") as (url, _):
        known = Registry(url.replace("//", "//u:p%3Aw@"))
        assert known.schema(7) == '"int"'
        assert repr(known) == url
        with pytest.raises(FirearrowError, match=rf"schema registry {url}: HTTP Error 401"):
            Registry(url.replace("//", "//u:wrong@")).schema(7)


def test_what_is_no_answer_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must begin with http:// or https://"):
        Registry("file:///etc/passwd")
    with serving_schemas({}, {}) as (url, _):
        pass
    with pytest.raises(FirearrowError, match=rf"schema registry {url}: .*refused.* for /schemas"):
        Registry(url).schema(1)
    told = "/schemas/ids/1 is not one whole AVRO schema"
    with (
        serving_schemas({1: "{}"}, {}, more={"schemaType": "JSON"}) as (url, _),
        pytest.raises(ConfigError, match=told),
    ):
        Registry(url).schema(1)
