"""Outcomes of calls: codes for brokers' answers, texts, and the status of several results."""

import pytest

from firearrow.errors import BrokerError, ConfigError, FirearrowError
from firearrow.proxy.messages import Code
from firearrow.proxy.statuses import ProxyError, code_of, status, status_of, status_of_all, status_of_answer
from firearrow.wire.codes import ResponseCode


@pytest.mark.parametrize(
    ("response_code", "code"),
    [
        (ResponseCode.SUCCESS, Code.OK),
        (ResponseCode.SYSTEM_BUSY, Code.TOO_MANY_REQUESTS),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, Code.NOT_IMPLEMENTED),
        (ResponseCode.TOPIC_NOT_EXIST, Code.TOPIC_NOT_FOUND),
        (10_005, Code.TOPIC_NOT_FOUND),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, Code.CONSUMER_GROUP_NOT_FOUND),
        (ResponseCode.LMQ_QUOTA_EXCEEDED, Code.LITE_TOPIC_QUOTA_EXCEEDED),
        (ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
        (10_002, Code.PROXY_TIMEOUT),
    ],
)
def test_a_response_code_becomes_a_code(response_code: int, code: Code) -> None:
    assert code_of(response_code) is code


def test_every_other_response_code_is_an_internal_error() -> None:
    known = {0, 2, 3, 17, 26, 2017, 2018, 10_002, 10_005}
    others = {int(code) for code in ResponseCode} - known | {-1, 99_999}
    assert {code_of(code) for code in others} == {Code.INTERNAL_SERVER_ERROR}


def test_a_status_without_a_text_has_the_name_of_its_code() -> None:
    assert (status(Code.OK).code, status(Code.OK).message) == (20000, "OK")
    assert status(Code.OK, "").message == ""
    assert ProxyError(Code.FORBIDDEN).message == "FORBIDDEN"


def test_an_answer_without_a_remark_has_its_number_as_text() -> None:
    busy = status_of_answer(ResponseCode.SYSTEM_BUSY, None)
    assert (busy.code, busy.message) == (Code.TOO_MANY_REQUESTS, "2")
    assert status_of_answer(ResponseCode.SYSTEM_BUSY, "later").message == "later"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ProxyError(Code.ILLEGAL_TOPIC, "bad"), Code.ILLEGAL_TOPIC, "bad"),
        (BrokerError.of(17, "No topic route", "127.0.0.1:1"), Code.TOPIC_NOT_FOUND, "No topic route"),
        (BrokerError.of(16, "not yours"), Code.INTERNAL_SERVER_ERROR, "not yours"),
        (TimeoutError("a did not answer in 2 s"), Code.PROXY_TIMEOUT, "a did not answer in 2 s"),
        (ConnectionResetError("gone"), Code.INTERNAL_SERVER_ERROR, "gone"),
        (ConfigError("no"), Code.INTERNAL_SERVER_ERROR, "no"),
        (ValueError(), Code.INTERNAL_SERVER_ERROR, "ValueError"),
    ],
)
def test_a_failure_becomes_a_status(error: Exception, code: Code, message: str) -> None:
    found = status_of(error)
    assert (found.code, found.message) == (code, message)


def test_an_error_names_code_and_text() -> None:
    error = ProxyError(Code.ILLEGAL_TOPIC, "The specified topic is blank")
    assert isinstance(error, FirearrowError)
    assert str(error) == "40002: The specified topic is blank"


def test_several_results_have_one_status() -> None:
    assert status_of_all([Code.OK, Code.OK], "none").code == Code.OK
    mixed = status_of_all([Code.OK, Code.HA_NOT_AVAILABLE], "none")
    assert (mixed.code, mixed.message) == (Code.MULTIPLE_RESULTS, "MULTIPLE_RESULTS")
    nothing = status_of_all([], "send status is empty")
    assert (nothing.code, nothing.message) == (Code.INTERNAL_SERVER_ERROR, "send status is empty")
