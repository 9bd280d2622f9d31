"""As much of the remoting protocol as a probe needs: one request, one answer, on a new socket.

Deliberately not Firearrow's own codec: the probe must not be wrong the way the server is wrong.
A frame is `total length (4) | header length (4) | JSON header | body`, big endian; the high byte
of the header length is the header's form, 0 for JSON.
"""

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from benchmarks.errors import BenchmarkError

PULL_MESSAGE = 11
UPDATE_AND_CREATE_TOPIC = 17
GET_BROKER_RUNTIME_INFO = 28
SEND_MESSAGE_V2 = 310
GET_MAX_OFFSET = 30
GET_ROUTEINFO_BY_TOPIC = 105
GET_SUBSCRIPTIONGROUP_CONFIG = 352
GET_BROKER_HA_STATUS = 907
SUCCESS = 0
TEMPLATE_TOPIC = "TBW102"  # every broker that creates topics by itself offers it
CLIENT_VERSION = 497
ANSWER_BYTES_MAX = 1 << 20  # a route is a few hundred bytes
LENGTHS = struct.Struct(">II")


@dataclass(frozen=True)
class Answer:
    """A response: its code, the fields of its header, and its body undecoded."""

    code: int
    body: bytes
    fields: Mapping[str, str] = field(default_factory=dict)


def encode(code: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    """Make one request frame."""
    header = json.dumps(
        {
            "code": code,
            "extFields": dict(fields),
            "flag": 0,
            "language": "JAVA",
            "opaque": 1,
            "serializeTypeCurrentRPC": "JSON",
            "version": CLIENT_VERSION,
        }
    ).encode()
    return LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body


def decode(frame: bytes) -> Answer:
    """Read one whole response frame."""
    _, header_word = LENGTHS.unpack_from(frame)
    end = LENGTHS.size + (header_word & 0xFFFFFF)
    header = json.loads(frame[LENGTHS.size : end])
    return Answer(int(header["code"]), frame[end:], header.get("extFields") or {})


class Line:
    """A connection that carries one request at a time; a context that closes it."""

    def __init__(self, address: str, timeout_s: float = 5) -> None:
        """Connect to HOST:PORT; raises OSError."""
        host, _, port = address.rpartition(":")
        self._address = address
        self._connection = socket.create_connection((host, int(port)), timeout_s)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._connection.makefile("rb")

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._stream.close()
        self._connection.close()

    def ask(self, request: bytes) -> Answer:
        """Send a request and wait for the answer; raises OSError."""
        self._connection.sendall(request)
        prefix = self._stream.read(4)
        if len(prefix) < 4:
            raise ConnectionError(f"{self._address} closed the connection")
        (length,) = struct.unpack(">I", prefix)
        if length > ANSWER_BYTES_MAX:
            raise ConnectionError(f"{self._address} announced an answer of {length} bytes")
        return decode(prefix + self._stream.read(length))


def call(address: str, request: bytes, timeout_s: float = 5) -> Answer:
    """Send a request to HOST:PORT over a connection of its own; raises OSError."""
    with Line(address, timeout_s) as line:
        return line.ask(request)


def one_message(broker_name: str, topic: str) -> bytes:
    """Make the request that sends one message of 128 bytes to queue 0 of a topic."""
    now_ms = time.time_ns() // 1_000_000
    properties = f"UNIQ_KEY\x017F000001{now_ms:024X}\x02WAIT\x01true"
    values = ("probe", topic, TEMPLATE_TOPIC, "4", "0", "0", str(now_ms), "0", properties, "0")
    fields = dict(zip("abcdefghij", values, strict=True))
    fields |= {"k": "false", "m": "false", "n": broker_name}
    return encode(SEND_MESSAGE_V2, fields, b"x" * 128)


def create_topic(topic: str, queues: int) -> bytes:
    """Make the request that makes or changes a topic."""
    fields = {
        "topic": topic,
        "defaultTopic": TEMPLATE_TOPIC,
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return encode(UPDATE_AND_CREATE_TOPIC, fields)


def find_group(group: str) -> bytes:
    """Make the request for a consumer group, which makes the group."""
    return encode(GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})


def send_one(broker_address: str, broker_name: str, topic: str) -> bool:
    """Send one message; say whether it was acknowledged."""
    return call(broker_address, one_message(broker_name, topic)).code == SUCCESS


def messages_in(broker_address: str, topic: str, queues: int) -> int:
    """Add up the maximum offsets of the queues 0, 1, ... of a topic."""
    with Line(broker_address) as line:
        answers = [
            line.ask(encode(GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})) for queue_id in range(queues)
        ]
    return sum(int(answer.fields.get("offset", 0)) for answer in answers)


def undispatched_bytes(broker_address: str) -> int:
    """Ask how much of the log is not in its queues yet."""
    table = json.loads(call(broker_address, encode(GET_BROKER_RUNTIME_INFO, {})).body)["table"]
    return int(table["dispatchBehindBytes"])


def lags(broker_address: str) -> list[int]:
    """Ask a master how many bytes of its log each slave that follows it has not reported yet."""
    answer = call(broker_address, encode(GET_BROKER_HA_STATUS, {}))
    if answer.code != SUCCESS:
        raise ConnectionError(f"{broker_address} does not say who follows it: {answer.code}")
    slaves = json.loads(answer.body)["haConnectionInfo"]
    return [int(slave["diff"]) for slave in slaves]


def pull(group: str, topic: str, queue_id: int, queue_offset: int, suspend_ms: int = 0) -> bytes:
    """Make the request for up to 32 messages of a queue; it may wait for the next one."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": "32",
        "sysFlag": "6" if suspend_ms else "4",  # 2: may wait, 4: has its subscription with it
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
        "subscription": "*",
        "subVersion": "1",
        "expressionType": "TAG",
    }
    return encode(PULL_MESSAGE, fields)


def records_of(body: bytes) -> Iterator[bytes]:
    """Give the stored messages in the body of a pull's or pop's answer."""
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        yield body[at : at + size]
        at += size


def count_records(body: bytes) -> int:
    """Count the stored messages in the body of a pull's answer."""
    return sum(1 for _ in records_of(body))


def routes(namesrv: str, broker_names: tuple[str, ...]) -> bool:
    """Say whether the name server knows all these brokers.

    The body is searched, not parsed: Java writes broker ids as unquoted keys, which is not JSON.
    """
    answer = call(namesrv, encode(GET_ROUTEINFO_BY_TOPIC, {"topic": TEMPLATE_TOPIC}))
    body = answer.body.replace(b" ", b"")
    named = (f'"brokerName":"{name}"'.encode() in body for name in broker_names)
    return answer.code == SUCCESS and all(named)


def accepts(address: str) -> bool:
    """Tell whether a server listens at an address, for `until`: raise ConnectionRefusedError if none does yet."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=1).close()
    return True


def until(
    what: str,
    condition: Callable[[], bool],
    *,
    timeout_s: float,
    pause_s: float = 0.1,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Try `condition` until it holds; refused connections count as not yet.

    `check` is called between tries and may raise, e.g. because the server has ended.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except OSError:
            pass  # not listening yet, or not ready to answer
        check()
        if time.monotonic() > end:
            raise BenchmarkError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(pause_s)
