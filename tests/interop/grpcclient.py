"""The official clients of RocketMQ 5, as a test calls them.

Each language has a program below ``grpcclients`` with the same operations. It reads a request in each line of its
input, and writes an answer in each line of its output, as `tests.interop.driver` has it:

============  ==================================================================  ===================================
producer      endpoints, tls, user, password, topics                              handle
send          handle, messages: topic, body (base64), tag, keys, properties,      for each message: id, recall
              group, lite, deliverMs (0: now)
transact      handle, message, decision (COMMIT, ROLLBACK, empty: none)           id, recall
checked       handle                                                              ids of messages that were checked
recall        handle, topic, recall                                               id of the message
push          as producer, group; topics is a map of topics to tags               handle
received      handle                                                              messages that a push consumer got
simple        as push, waitMs                                                     handle
receive       handle, count, invisibleMs                                          messages
ack           handle, id
change        handle, id, invisibleMs
litePush      as producer, group, topic                                           handle
liteSimple    as litePush, waitMs                                                 handle
subscribe     handle, lite, again: how many that its group has consumed
unsubscribe   handle, lite
subscribeAll  handle
subscribed    handle                                                              lite topics that the client has
close         handle
============  ==================================================================  ===================================

The property ``check`` of a message is the decision when a broker checks its transaction. A push consumer refuses each
message the number of times in its property ``failures``. The error of an answer has the client's exception, with the
code of the proxy, or 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from firearrow.wire.signature import Credentials
from tests.interop.driver import Driver, driving
from tests.interop.waiting import wait_until
from tests.pages import ROOT

ARRIVAL_SECONDS: Final = 60  # a client that misses a message asks again after 20 s, and a JVM may be slow
ALL_TAGS: Final = "*"
NOBODY: Final = Credentials("", "")
WAIT_MS: Final = 1000  # of a receive


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message to send."""

    topic: str
    body: bytes
    tag: str = ""
    keys: list[str] = []
    properties: dict[str, str] = {}
    group: str = ""
    lite: str = ""
    deliver_ms: int = 0


class Sent(msgspec.Struct, frozen=True):
    """The receipt of a message."""

    id: str
    recall: str


class Got(msgspec.Struct, frozen=True, rename="camel"):
    """A message as a consumer got it."""

    id: str
    topic: str
    body: bytes
    tag: str
    keys: list[str]
    properties: dict[str, str]
    group: str
    attempt: int
    corrupted: bool
    received_ms: int
    lite: str = ""


H = TypeVar("H", bound="_Handle")


class _Handle:
    """A started client of a program."""

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver = driver
        self._number = number

    def _call(self, op: str, result: Any, /, **arguments: object) -> Any:
        return self._driver.call(op, result, handle=self._number, **arguments)

    def close(self) -> None:
        """Shut the client down."""
        self._call("close", type(None))


class Producer(_Handle):
    """A producer."""

    def send(self, messages: Sequence[Outgoing]) -> list[Sent]:
        """Send one message after the other."""
        sent: list[Sent] = self._call("send", list[Sent], messages=messages)
        return sent

    def transact(self, message: Outgoing, decision: str = "") -> Sent:
        """Send a half message and decide."""
        sent: Sent = self._call("transact", Sent, message=message, decision=decision)
        return sent

    def checked(self) -> list[str]:
        """Ids of the messages that brokers have checked."""
        ids: list[str] = self._call("checked", list[str])
        return ids

    def recall(self, topic: str, handle: str) -> str:
        """Recall a delayed message; return its id."""
        found: str = self._call("recall", str, topic=topic, recall=handle)
        return found


class PushConsumer(_Handle):
    """A push consumer."""

    def received(self) -> list[Got]:
        """Messages so far, in the order of arrival."""
        got: list[Got] = self._call("received", list[Got])
        return got

    def wait_for(self, count: int, within_s: float = ARRIVAL_SECONDS) -> list[Got]:
        """Messages, as soon as there are ``count``."""

        def enough() -> list[Got] | None:
            got = self.received()
            return got if len(got) >= count else None

        return wait_until(enough, within_s, f"{count} messages")


class SimpleConsumer(_Handle):
    """A simple consumer."""

    def receive(self, count: int = 32, invisible_ms: int = 30_000) -> list[Got]:
        """Receive messages once, maybe none."""
        got: list[Got] = self._call("receive", list[Got], count=count, invisibleMs=invisible_ms)
        return got

    def wait_for(self, count: int, invisible_ms: int = 30_000, within_s: float = ARRIVAL_SECONDS) -> list[Got]:
        """Receive messages until there are ``count``."""
        got: list[Got] = []
        deadline_s = time.monotonic() + within_s
        while len(got) < count and time.monotonic() < deadline_s:
            got += self.receive(count - len(got), invisible_ms)
        assert len(got) == count, f"{len(got)} messages of {count} within {within_s} s"
        return got

    def ack(self, message: Got) -> None:
        """Acknowledge a message."""
        self._call("ack", type(None), id=message.id)

    def change(self, message: Got, invisible_ms: int) -> None:
        """Change the invisible time of a message."""
        self._call("change", type(None), id=message.id, invisibleMs=invisible_ms)


class _LiteConsumer(_Handle):
    """A consumer of lite topics."""

    def subscribe(self, *lites: str, again: int = 0) -> None:
        """Subscribe to lite topics, and get so many again that the group has consumed."""
        for lite in lites:
            self._call("subscribe", type(None), lite=lite, again=again)

    def unsubscribe(self, lite: str) -> None:
        """Unsubscribe from a lite topic."""
        self._call("unsubscribe", type(None), lite=lite)

    def subscribe_to_all(self) -> None:
        """Subscribe to all lite topics, as the group allows."""
        self._call("subscribeAll", type(None))

    def subscribed(self) -> set[str]:
        """Lite topics that the client knows to be its own."""
        lites: set[str] = self._call("subscribed", set[str])
        return lites


class LitePushConsumer(PushConsumer, _LiteConsumer):
    """A push consumer of lite topics."""


class LiteSimpleConsumer(SimpleConsumer, _LiteConsumer):
    """A simple consumer of lite topics."""


class GrpcClients:
    """The clients of a program, for one address and user."""

    def __init__(self, driver: Driver, endpoints: str, *, user: Credentials = NOBODY, tls: bool = False) -> None:
        self._driver = driver
        self._common = {"endpoints": endpoints, "tls": tls, "user": user.access_key, "password": user.secret_key}
        self._open: list[_Handle] = []

    def producer(self, *topics: str) -> Producer:
        """Start a producer."""
        return self._started(Producer, "producer", topics=topics)

    def push(self, group: str, topics: Mapping[str, str] | str) -> PushConsumer:
        """Start a push consumer."""
        return self._started(PushConsumer, "push", group=group, topics=_expressions(topics))

    def simple(self, group: str, topics: Mapping[str, str] | str, wait_ms: int = WAIT_MS) -> SimpleConsumer:
        """Start a simple consumer."""
        return self._started(SimpleConsumer, "simple", group=group, topics=_expressions(topics), waitMs=wait_ms)

    def lite_push(self, group: str, parent: str) -> LitePushConsumer:
        """Start a push consumer of a topic's lite topics."""
        return self._started(LitePushConsumer, "litePush", group=group, topic=parent)

    def lite_simple(self, group: str, parent: str, wait_ms: int = WAIT_MS) -> LiteSimpleConsumer:
        """Start a simple consumer of a topic's lite topics."""
        return self._started(LiteSimpleConsumer, "liteSimple", group=group, topic=parent, waitMs=wait_ms)

    def _started(self, kind: Callable[[Driver, int], H], op: str, **arguments: object) -> H:
        number = self._driver.call(op, int, **self._common, **arguments)
        handle = kind(self._driver, number)
        self._open.append(handle)
        return handle

    def close(self) -> None:
        """Shut all clients down."""
        while self._open:
            self._open.pop().close()


def _expressions(topics: Mapping[str, str] | str) -> Mapping[str, str]:
    return {topics: ALL_TAGS} if isinstance(topics, str) else topics


@contextmanager
def running_program(command: list[str], directory: Path, trusted: Path) -> Iterator[Driver]:
    """Run a program for a ``with`` block. Its clients trust the certificates in ``trusted``, and log to files in
    ``directory``.
    """
    environment = {
        "HOME": str(directory),
        "PYTHONPATH": str(ROOT),  # where the Python program stands; each runs in its directory
        "rocketmq.client.logRoot": str(directory),  # of the Go client
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(trusted),
        "NODE_EXTRA_CA_CERTS": str(trusted),
        "SSL_CERT_FILE": str(trusted),
    }
    with driving(command, directory, **environment) as driver:
        yield driver
