"""Tests of what response codes mean."""

from firearrow.wire.codes import ResponseCode
from firearrow.wire.meanings import MEANINGS, raised_as


def test_every_code_has_a_cause_and_a_cure_of_its_own() -> None:
    assert list(MEANINGS) == list(ResponseCode)
    texts = [meaning.cause for meaning in MEANINGS.values()]
    assert len(set(texts)) == len(texts)
    for meaning in MEANINGS.values():
        assert meaning.cause.endswith(".")
        assert meaning.cure.endswith(".")


def test_a_code_says_what_the_client_raises() -> None:
    assert raised_as(ResponseCode.SYSTEM_BUSY) == "BrokerBusy"
    assert raised_as(ResponseCode.SUCCESS) == "-"
