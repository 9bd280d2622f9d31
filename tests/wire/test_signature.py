"""Signed requests."""

import base64
import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from firearrow.wire.signature import Credentials, sign, signature


def test_the_worked_example() -> None:
    ext = {"topic": "T", "queueId": "3"}
    sign(ext, b"", Credentials("user", "secret"))
    assert ext == {"topic": "T", "queueId": "3", "AccessKey": "user", "Signature": "+6h/ctCG5Vwn7se/bVKkUCdWGSw="}


def test_the_token_is_sent_and_signed() -> None:
    ext: dict[str, str] = {}
    sign(ext, b"", Credentials("user", "secret", "token"))
    assert ext["SecurityToken"] == "token"
    expected = hmac.new(b"secret", b"usertoken", hashlib.sha1).digest()
    assert base64.b64decode(ext["Signature"]) == expected


@given(st.dictionaries(st.text(), st.text()), st.binary(), st.text(min_size=1))
def test_a_receiver_finds_the_same_signature(ext: dict[str, str], body: bytes, secret: str) -> None:
    for taken in ("AccessKey", "SecurityToken", "Signature"):
        ext.pop(taken, None)
    sign(ext, body, Credentials("user", secret))
    assert signature(ext, body, secret) == ext["Signature"]
    assert signature(ext, body + b"x", secret) != ext["Signature"]


def test_a_secret_is_not_printed() -> None:
    assert "hidden" not in repr(Credentials("user", "hidden", "hidden"))
