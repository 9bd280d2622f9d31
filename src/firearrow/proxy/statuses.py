"""Outcome of a call: a `Code` and a text, inside an answer that gRPC itself counts as successful.

A check of a request raises `ProxyError`. A broker's refusal becomes a code by a short table; every code without a row
is an internal error::

    code_of(ResponseCode.SYSTEM_BUSY)     ->  Code.TOO_MANY_REQUESTS
    code_of(ResponseCode.NO_PERMISSION)   ->  Code.INTERNAL_SERVER_ERROR
    status(Code.OK)                       ->  Status(code=Code.OK, message="OK")

Source: RocketMQ's ``ResponseBuilder``, ``GrpcProxyException``, ``TopicRouteHelper``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from firearrow.errors import BrokerError, FirearrowError
from firearrow.proxy.messages import Code, Status
from firearrow.wire.codes import ResponseCode

ACCESS_BROKER_TIMEOUT: Final = 10_002
"""Code of RocketMQ's client for a broker that did not answer in time."""

NOT_FOUND_TOPIC: Final = 10_005
"""Code of RocketMQ's client for a topic without a route."""

PROXY_EXCEPTION: Final = "org.apache.rocketmq.proxy.common.ProxyException: "
"""Beginning of the texts that RocketMQ's processors raise, which clients may have learnt to look for."""

_CODES: Final = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    ACCESS_BROKER_TIMEOUT: Code.PROXY_TIMEOUT,
    NOT_FOUND_TOPIC: Code.TOPIC_NOT_FOUND,
}


class ProxyError(FirearrowError):
    """A call fails with a code and a text; the text is the name of the code if there is no other."""

    def __init__(self, code: Code, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message: str = code.name if message is None else message

    def __str__(self) -> str:
        return f"{self.code.value}: {self.message}"


def status(code: Code, message: str | None = None) -> Status:
    """Return a status; without a text, it is the one of all such outcomes, with the name of the code. Callers must not
    change it.
    """
    return _named(code) if message is None else Status(code=code, message=message)


@cache
def _named(code: int) -> Status:
    return Status(code=code, message=Code(code).name)


def code_of(response_code: int) -> Code:
    """Return the code for the response code of a broker or a name server."""
    return _CODES.get(response_code, Code.INTERNAL_SERVER_ERROR)


def status_of_answer(response_code: int, remark: str | None) -> Status:
    """Return the status for a broker's answer; without a remark, the text is the number of its code.

    Java: ResponseBuilder#buildStatus makes TOPIC_NOT_EXIST an internal error in this place alone.
    """
    return Status(code=code_of(response_code), message=str(int(response_code)) if remark is None else remark)


def status_of(error: BaseException) -> Status:
    """Return the status for a failed call.

    Java: the text of an unexpected exception has its class and a place in the source. Here it has the text alone.
    """
    if isinstance(error, ProxyError):
        return Status(code=error.code, message=error.message)
    if isinstance(error, BrokerError):
        return Status(code=code_of(error.code), message=error.remark)
    if isinstance(error, TimeoutError):
        return Status(code=Code.PROXY_TIMEOUT, message=str(error))
    return Status(code=Code.INTERNAL_SERVER_ERROR, message=str(error) or type(error).__name__)


def status_of_all(codes: Iterable[int], nothing: str) -> Status:
    """Return the overall status of an answer with several results: their code if they have the same.

    ``nothing`` is the text if there is no result at all, which is an internal error. Callers must not change it.
    """
    found = set(codes)
    if not found:
        return Status(code=Code.INTERNAL_SERVER_ERROR, message=nothing)
    return _named(found.pop() if len(found) == 1 else Code.MULTIPLE_RESULTS)
