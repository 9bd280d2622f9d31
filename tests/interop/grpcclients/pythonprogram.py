"""The official Python client of RocketMQ 5, as a program with the operations of `tests.interop.grpcclient`."""

from __future__ import annotations

import base64
import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

Arguments = Mapping[str, Any]

REQUEST_SECONDS: Final = 60  # a broker that has just started may be slow: after 3 s, a producer would send again


def configuration(arguments: Arguments) -> ClientConfiguration:
    """Return the configuration that all clients share."""
    credentials = Credentials(arguments["user"], arguments["password"])
    return ClientConfiguration(arguments["endpoints"], credentials, "", REQUEST_SECONDS)


def message_of(outgoing: Arguments) -> Message:
    """Return a message to send."""
    message = Message()
    message.topic = outgoing["topic"]
    message.body = base64.b64decode(outgoing["body"])
    if outgoing["tag"]:
        message.tag = outgoing["tag"]
    for key in outgoing["keys"]:
        message.keys = key  # adds one
    for key, value in outgoing["properties"].items():
        message.add_property(key, value)
    if outgoing["group"]:
        message.message_group = outgoing["group"]
    if outgoing["lite"]:
        message.lite_topic = outgoing["lite"]
    if outgoing["deliverMs"]:
        message.delivery_timestamp = outgoing["deliverMs"] // 1000
    return message


def described(message: Message) -> dict[str, Any]:
    """Return a received message as the tests want it."""
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "tag": message.tag or "",
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "group": message.message_group or "",
        "lite": message.lite_topic or "",
        "attempt": message.delivery_attempt,
        "corrupted": bool(message.corrupted),
        "receivedMs": time.time_ns() // 1_000_000,
    }


class Checks(TransactionChecker):  # type: ignore[misc]
    """Decides as the property ``check`` of a message says."""

    def __init__(self) -> None:
        self.checked: list[str] = []

    def check(self, message: Message) -> int:
        """Return the decision."""
        self.checked.append(message.message_id)
        named: int = TransactionResolution.Value(message.properties.get("check", "COMMIT"))
        return named


class Listener(MessageListener):  # type: ignore[misc]
    """Refuses each message the number of times that its property ``failures`` says."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def consume(self, message: Message) -> Any:
        """Take or refuse a message."""
        with self._lock:
            self.received.append(described(message))
            self._times[message.message_id] += 1
            fails = self._times[message.message_id] <= int(message.properties.get("failures", "0"))
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


class Program:
    """The open clients by their numbers, and the operations."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._clients: dict[int, Any] = {}
        self._checks: dict[int, Checks] = {}
        self._listeners: dict[int, Listener] = {}
        self._messages: dict[str, Message] = {}
        self.operations: dict[str, Callable[[Arguments], Any]] = {
            "producer": self.producer,
            "send": self.send,
            "transact": self.transact,
            "checked": lambda it: self._checks[it["handle"]].checked,
            "recall": self.recall,
            "push": self.push,
            "received": lambda it: list(self._listeners[it["handle"]].received),
            "simple": self.simple,
            "receive": self.receive,
            "ack": lambda it: self._clients[it["handle"]].ack(self._messages[it["id"]]),
            "change": self.change,
            "litePush": self.lite_push,
            "liteSimple": self.lite_simple,
            "subscribe": lambda it: self._clients[it["handle"]].subscribe_lite(it["lite"]),
            "unsubscribe": lambda it: self._clients[it["handle"]].unsubscribe_lite(it["lite"]),
            "subscribeAll": lambda it: self._clients[it["handle"]].subscribe_lite_all(),
            "close": lambda it: self._clients.pop(it["handle"]).shutdown(),
        }

    def _started(self, client: Any) -> int:
        client.startup()
        number = next(self._numbers)
        self._clients[number] = client
        return number

    def producer(self, arguments: Arguments) -> int:
        """Start a producer."""
        checks = Checks()
        topics = tuple(arguments["topics"])
        number = self._started(Producer(configuration(arguments), topics, checks, arguments["tls"]))
        self._checks[number] = checks
        return number

    def send(self, arguments: Arguments) -> list[dict[str, Any]]:
        """Send messages one after the other."""
        producer = self._clients[arguments["handle"]]
        receipts = [producer.send(message_of(one)) for one in arguments["messages"]]
        return [{"id": receipt.message_id, "recall": receipt.recall_handle or ""} for receipt in receipts]

    def transact(self, arguments: Arguments) -> dict[str, Any]:
        """Send a half message, and decide."""
        producer = self._clients[arguments["handle"]]
        transaction = producer.begin_transaction()
        receipt = producer.send(message_of(arguments["message"]), transaction)
        if arguments["decision"]:
            getattr(transaction, arguments["decision"].lower())()
        return {"id": receipt.message_id, "recall": ""}

    def recall(self, arguments: Arguments) -> str:
        """Recall a delayed message."""
        producer = self._clients[arguments["handle"]]
        return str(producer.recall_message(arguments["topic"], arguments["recall"]))

    def push(self, arguments: Arguments) -> int:
        """Start a push consumer."""
        listener = Listener()
        consumer = PushConsumer(
            configuration(arguments), arguments["group"], listener, expressions(arguments), tls_enable=arguments["tls"]
        )
        return self._listening(consumer, listener)

    def lite_push(self, arguments: Arguments) -> int:
        """Start a push consumer of lite topics."""
        listener = Listener()
        group, parent = arguments["group"], arguments["topic"]
        consumer = LitePushConsumer(configuration(arguments), group, parent, listener, tls_enable=arguments["tls"])
        return self._listening(consumer, listener)

    def _listening(self, consumer: Any, listener: Listener) -> int:
        number = self._started(consumer)
        self._listeners[number] = listener
        return number

    def simple(self, arguments: Arguments) -> int:
        """Start a simple consumer."""
        consumer = SimpleConsumer(
            configuration(arguments),
            arguments["group"],
            expressions(arguments),
            arguments["waitMs"] // 1000,
            tls_enable=arguments["tls"],
        )
        return self._started(consumer)

    def lite_simple(self, arguments: Arguments) -> int:
        """Start a simple consumer of lite topics."""
        consumer = LiteSimpleConsumer(
            arguments["topic"],
            configuration(arguments),
            arguments["group"],
            arguments["waitMs"] // 1000,
            tls_enable=arguments["tls"],
        )
        number = self._started(consumer)
        consumer._init_settings_event.wait(REQUEST_SECONDS)  # by which it knows how many lite topics it may have
        return number

    def receive(self, arguments: Arguments) -> list[dict[str, Any]]:
        """Receive messages once."""
        consumer = self._clients[arguments["handle"]]
        messages = consumer.receive(arguments["count"], arguments["invisibleMs"] // 1000) or []
        self._messages |= {message.message_id: message for message in messages}
        return [described(message) for message in messages]

    def change(self, arguments: Arguments) -> None:
        """Change the invisible time of a message."""
        message = self._messages[arguments["id"]]
        self._clients[arguments["handle"]].change_invisible_duration(message, arguments["invisibleMs"] // 1000)


def expressions(arguments: Arguments) -> dict[str, FilterExpression]:
    """Return the subscription of a consumer."""
    return {topic: FilterExpression(tags) for topic, tags in arguments["topics"].items()}


def main() -> None:
    """Answer each line of standard input."""
    program = Program()
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": program.operations[request["op"]](request["arguments"])}
        except Exception as error:  # the test judges whatever a client raises
            code = getattr(error, "code", None)
            text = str(error)
            answer = {
                "error": {"type": type(error).__name__, "code": code if isinstance(code, int) else 0, "text": text}
            }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
