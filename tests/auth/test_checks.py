"""Who signs with the right secret is believed, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.auth.checks import Authentication
from firearrow.auth.metadata import Metadata
from firearrow.auth.model import SUBJECT_USER, User
from firearrow.errors import BrokerError
from firearrow.events import Events
from firearrow.wire.command import Command, request
from firearrow.wire.frame import Connection, encode_request
from firearrow.wire.signature import Credentials, is_signed, sign


@pytest.fixture(name="metadata")
def opened(tmp_path: Path) -> Iterator[Metadata]:
    metadata = Metadata(tmp_path, Events())
    metadata.create_user(User(username="u", password="secret", subject_type=SUBJECT_USER))
    yield metadata
    metadata.close()


def signed(secret: str = "secret") -> Command[dict[str, str]]:
    command = request(14, {"topic": "T", "queueId": 3}, b"body")
    sign(command.ext, b"body", Credentials("u", secret))
    return command


class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_user_is_believed_for_a_while_if_that_is_asked_for(metadata: Metadata) -> None:
    clock = Seconds()
    authentication = Authentication(metadata, clock, remember_seconds=60.0, remembered_max=2)
    good, bad = signed(), signed("guessed")

    def is_believed(connection: str, command: Command[dict[str, str]]) -> bool:
        try:
            return authentication.user_of(connection, command, command.ext) == "u"
        except BrokerError:
            return False

    assert not is_believed("one", bad)
    assert is_believed("one", good)
    assert is_believed("one", bad)
    assert not is_believed("two", bad)
    clock.now = 60.0
    assert not is_believed("one", bad)
    assert is_believed("one", good)
    authentication.forget("one")
    assert not is_believed("one", bad)
    authentication.forget("one")
    for connection in ("one", "two", "three"):  # one more than are remembered
        assert is_believed(connection, good)
    assert [is_believed(it, bad) for it in ("one", "two", "three")] == [False, False, True]


def test_else_each_signature_is_looked_at(metadata: Metadata) -> None:
    authentication = Authentication(metadata, Seconds())
    good, bad = signed(), signed("guessed")
    for _ in range(2):
        assert authentication.user_of("one", good, good.ext) == "u"
        with pytest.raises(BrokerError, match="check signature failed"):
            authentication.user_of("one", bad, bad.ext)


@given(st.binary(max_size=40), st.dictionaries(st.text(max_size=8), st.text(max_size=20)), st.data())
def test_whatever_is_altered_the_signature_is_wrong(body: bytes, fields: dict[str, str], data: st.DataObject) -> None:
    """A value, a name that changes the order, or the body. (Nothing separates the values, so a
    letter may move from one to the next: that is upstream's scheme.)"""
    command = request(310, fields, body)
    sign(command.ext, body, Credentials("u", "secret"))
    ext = command.ext
    assert is_signed(ext, body, "secret", 513)
    assert not is_signed(ext, body, "secre", 513)
    assert not is_signed(ext, body + b"x", "secret", 513)
    assert not is_signed(ext | {"zz": "more"}, body, "secret", 513)
    name = data.draw(st.sampled_from(sorted(ext)))
    assert not is_signed(ext | {name: ext[name] + "x"}, body, "secret", 513)
    assert not is_signed(ext | {"Signature": ""}, body, "secret", 513)
    assert not is_signed(ext | {"Signature": "\u00e4" * 28}, body, "secret", 513)


def test_old_clients_add_a_field_behind_the_signature() -> None:
    command = signed()
    ext = command.ext | {"_UNIQUE_KEY_QUERY": "true"}
    assert is_signed(ext, b"body", "secret", 399)
    assert not is_signed(ext, b"body", "secret", 401)


@given(st.text(max_size=20), st.text(min_size=1, max_size=20), st.booleans())
def test_what_is_signed_is_what_is_read(value: str, secret: str, binary: bool) -> None:
    """On the whole way: from a client's fields over the wire to the check."""
    command = request(310, {"b": value, "a": "1"}, b"body", opaque=1)
    command.binary = binary
    sign(command.ext, b"body", Credentials("u", secret))
    [read] = Connection(decoders={}).receive(encode_request(command))
    assert read.ext == command.ext
    assert is_signed(read.ext, read.body, secret, 513)
