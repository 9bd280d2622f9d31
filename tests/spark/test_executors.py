"""What a host lacks for a job, and which variables executors get. `test_cluster` has executors of a cluster."""

from __future__ import annotations

import socket

import pytest

from firearrow.spark import executors
from firearrow.spark.executors import Needs, environment, lacks


def test_only_variables_that_help_elsewhere_are_passed_on() -> None:
    given = {"AWS_REGION": "r", "AWS_SECRET_ACCESS_KEY": "s", "AWS_PROFILE": "p", "AWS_CONFIG_FILE": "f", "HOME": "h"}
    assert environment(given) == {"AWS_REGION": "r", "AWS_SECRET_ACCESS_KEY": "s"}


def test_what_a_host_lacks_is_said_in_turn() -> None:
    assert lacks(Needs()) == []
    needs = Needs(modules=("no_such",), directories=("/no/such",), marks=("/no/mark",), version="0")
    package, version, directory, mark = lacks(needs)
    assert package == "lacks the package no_such"
    assert version.endswith(", but the driver has 0")
    assert directory == "does not see the directory /no/such"
    assert mark == "does not see the driver's directory /no"
    (uri,) = lacks(Needs(uris=("nowhere://key:secret@bucket/x",)))
    assert uri.startswith("can't reach nowhere://bucket/x: ")


def test_a_place_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (said,) = lacks(Needs(uris=(f"s3://k:s@bucket/x?endpoint_override=127.0.0.1:{port}&scheme=http",)))
        assert said == "gets no answer from s3://bucket/x within 0.05 s"
        assert lacks(Needs(servers=(f"127.0.0.1:1;127.0.0.1:{port}",))) == []
    (said,) = lacks(Needs(servers=("127.0.0.1:1",)))
    assert said == "can't reach 127.0.0.1:1: Connection refused"
