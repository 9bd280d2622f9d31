"""What is asked of a schema registry, and what its answers mean."""

from __future__ import annotations

import pytest

from firearrow.errors import ConfigError, FirearrowError
from firearrow.spark.bodies.bodies import Undecodable
from firearrow.spark.bodies.registry import AVRO, JSON, RegisteredSchema, Registry, require_frame
from tests.spark.registries import GLOBAL, serving_schemas


def test_the_frame_is_five_bytes() -> None:
    assert require_frame(bytes.fromhex("000000000702")) == (7, b"\x02")
    assert require_frame(bytes(5)) == (0, b"")
    assert require_frame(bytes.fromhex("00000000000000000702"), 8) == (7, b"\x02")
    for body, id_bytes in ((bytes(4), 4), (b"\x01\0\0\0\x07\x02", 4), (bytes(8), 8)):
        with pytest.raises(Undecodable, match="does not begin with the id of a schema"):
            require_frame(body, id_bytes)


def test_schemas_are_found_by_id_and_by_subject() -> None:
    with serving_schemas({7: '"int"', 9: '"long"'}, {"a/b": 9}) as (url, asked):
        registry = Registry(url)
        assert registry.latest("a/b") == RegisteredSchema(9, '"long"')
        found = [registry.schema(7), registry.schema(7), registry.schema(8)]
        assert found == [RegisteredSchema(7, '"int"')] * 2 + [None]
        assert asked == ["/subjects/a%2Fb/versions/latest", "/schemas/ids/7", "/schemas/ids/8"]
        with pytest.raises(ConfigError, match=rf"schema registry {url} has no subject 'c'$"):
            registry.latest("c")


def test_a_password_is_sent_and_never_shown() -> None:
    with serving_schemas({7: '"int"'}, {}, authorization="Basic dTpwOnc=") as (url, _):
        known = Registry(url.replace("//", "//u:p%3Aw@"))
        assert known.schema(7) == RegisteredSchema(7, '"int"')
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
    told = "/schemas/ids/1 is JSON, not AVRO"
    with (
        serving_schemas({1: "{}"}, {}, more={"schemaType": "JSON"}) as (url, _),
        pytest.raises(ConfigError, match=told),
    ):
        Registry(url).schema(1)


def test_references_are_resolved_once_and_before_the_schemas_that_need_them() -> None:
    schemas = {1: "A", 2: "B", 3: "C", 4: "D"}
    references = {4: [("c", "c/v"), ("b", "b/v")], 3: [("a", "a/v"), ("b", "b/v")], 2: [("a", "a/v")]}
    subjects = {"a/v": 1, "b/v": 2, "c/v": 3, "d/v": 4}
    whole = RegisteredSchema(4, "D", (("a", "A"), ("b", "B"), ("c", "C")))
    for apicurio, count, again in (("", 4, 2), ("v2", 12, 1), ("v3", 12, 3)):
        with serving_schemas(schemas, subjects, references=references, apicurio=apicurio) as (url, asked):
            registry = Registry(url)
            latest = registry.latest("d/v")
            assert latest.references == whole.references
            assert len(asked) == count
            assert registry.latest("d/v") == latest
            assert registry.schema(latest.schema_id) == latest
            assert len(asked) == count + again


def test_references_that_lead_nowhere_or_back_are_refused() -> None:
    references = {1: [("b", "b")], 2: [("a", "a")], 3: [("x", "none")]}
    subjects = {"a": 1, "b": 2, "c": 3}
    with serving_schemas({1: "A", 2: "B", 3: "C"}, subjects, references=references) as (url, _):
        registry = Registry(url)
        with pytest.raises(ConfigError, match=f"{url}: /subjects/b/versions/1 refers to itself or to too many"):
            registry.latest("a")
        with pytest.raises(ConfigError, match=f"{url} has no /subjects/none/versions/1, to which 'x' refers"):
            registry.latest("c")
        with pytest.raises(Undecodable, match="to which 'x' refers"):
            registry.written(3, AVRO)
        with pytest.raises(Undecodable, match="schema 8 is not in the registry"):
            registry.written(8, AVRO)


def test_the_path_of_apicurio_says_which_ids_and_frames_it_has() -> None:
    kinds = [("v2", "", GLOBAL + 7, 8), ("v3", "", 7, 4), ("v2", "?id=contentId&bytes=4", 7, 4)]
    kinds += [("v3", "?id=globalId&bytes=8", GLOBAL + 7, 8), ("v3", "/?bytes=8", 7, 8)]
    for version, options, schema_id, id_bytes in kinds:
        with serving_schemas({7: '"int"'}, {"default/orders": 7}, apicurio=version) as (url, _):
            registry = Registry(url + options)
            assert registry.id_bytes == id_bytes
            assert registry.latest("orders") == RegisteredSchema(schema_id, '"int"')
            assert registry.schema(schema_id) == RegisteredSchema(schema_id, '"int"')
            assert registry.schema(8) is None
            with pytest.raises(ConfigError, match="is AVRO, not JSON"):
                registry.latest("orders", JSON)
            with pytest.raises(ConfigError, match="has no subject 'g/orders'"):
                registry.latest("g/orders")


def test_options_of_an_url_are_checked() -> None:
    base = "http://r/apis/registry/v3"
    for wrong in (
        f"{base}?id=x",
        f"{base}?bytes=2",
        f"{base}?a=4",
        "http://r?bytes=4",
        "http://r/apis/ccompat/v7?id=globalId",
    ):
        with pytest.raises(ConfigError, match=f"schema registry .*: cannot have the option {wrong.partition('?')[2]}"):
            Registry(wrong)


def test_an_id_that_no_registry_can_have_is_not_asked_for() -> None:
    with serving_schemas({}, {}) as (url, asked):
        assert Registry(url).schema((1 << 32) - 1) is None
        assert asked == []


def test_an_answer_that_is_no_schema_is_an_error() -> None:
    with (
        serving_schemas({1: "{}"}, {}, more={"references": "x"}) as (url, _),
        pytest.raises(FirearrowError, match="the answer for /schemas/ids/1 is no schema: TypeError"),
    ):
        Registry(url).schema(1)
