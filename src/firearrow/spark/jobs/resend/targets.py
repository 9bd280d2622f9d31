"""Queues of brokers as targets of messages that are sent again, and topics created for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from firearrow.client.producer.drafts import send_fields
from firearrow.client.producer.ending import HalfEnds, HalfRun
from firearrow.client.producer.transactions import Decision
from firearrow.client.pull.rangereader import PullOptions, RangeReader
from firearrow.client.queues import Queue, Span
from firearrow.client.routing.queues import WritableQueue, writable
from firearrow.client.session.answers import read_number
from firearrow.clock import SystemClock
from firearrow.errors import BrokerError, BrokerUnavailable, ConfigError, NotDurable
from firearrow.message.batch import BatchMember, encode_batch
from firearrow.message.model import MessageView
from firearrow.message.names import AUTO_CREATE_TOPIC
from firearrow.message.record import iter_records
from firearrow.spark.access import Cluster
from firearrow.spark.jobs.resend.sender import BATCH_BYTES, member_bytes
from firearrow.spark.options import Options, for_sink
from firearrow.wire.bodies import PERM_READ, PERM_WRITE
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand

GROUP: Final = "firearrow-resend"
PULL_MESSAGES: Final = 256
READ_BYTES: Final = 1 << 20
_AGAIN: Final = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class ClusterMasters:
    """The masters of a cluster, by name. Raises ConfigError if the options name no cluster."""

    def __init__(self, options: Options) -> None:
        self._cluster = Cluster(options.place, options.access)
        self._addresses: dict[str, str] = {}

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ClusterMasters:
        """Read the options of a sink."""
        return cls(for_sink(options))

    def addresses(self) -> dict[str, str]:
        """Return the address of each broker's master."""
        if not self._addresses:
            self._addresses = self._cluster.run(self._cluster.name_servers.masters())
        if not self._addresses:
            raise ConfigError("option nameServer: the cluster has no brokers to write to")
        return self._addresses

    def address(self, broker: str) -> str:
        """Return the address of a broker; raise BrokerUnavailable if there is none of that name."""
        try:
            return self.addresses()[broker]
        except KeyError:
            raise BrokerUnavailable(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"there is no broker named {broker!r}"
            ) from None

    def create_topic(self, topic: str, broker: str, queues: int) -> None:
        """Create a topic on a broker, or change the number of its queues."""
        fields: dict[str, FieldValue] = {
            "topic": topic,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": PERM_READ | PERM_WRITE,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
        self.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    def writable(self, topic: str) -> list[WritableQueue]:
        """Return the queues of a topic that allow writing; raises as ``NameServers.route``."""
        return writable(self._cluster.run(self._cluster.name_servers.route(topic)))

    def call(self, broker: str, code: int, fields: Mapping[str, FieldValue], body: bytes = b"") -> AnyCommand:
        """Call a broker; raises as ``Client.call``."""
        return self._cluster.run(self._cluster.client.call(self.address(broker), code, fields, body))

    def answer(self, broker: str, code: int, fields: Mapping[str, FieldValue]) -> AnyCommand:
        """Return the answer of a broker, with any code; raises as ``Client.answer``."""
        return self._cluster.run(self._cluster.client.answer(self.address(broker), code, fields))

    def end_halves(self, group: str, runs: Iterable[HalfRun], decision: Decision) -> None:
        """Decide half messages; raises as ``HalfEnds.decide``."""
        cluster = self._cluster
        cluster.run(HalfEnds(cluster.client, self.addresses(), group).decide(runs, decision))

    def read(self, place: Queue, span: Span) -> Iterator[bytes]:
        """Yield the stored records of a span of a queue; raises as ``RangeReader.read``."""
        cluster = self._cluster
        reader = RangeReader(cluster.client, _MasterAddresses(self), PullOptions(GROUP), place, span)
        while not reader.is_done:
            yield from cluster.run(reader.read(READ_BYTES))

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def queue(self, place: Queue) -> BrokerQueue:
        """Return a queue to write to."""
        return BrokerQueue(self, place)


class _MasterAddresses:
    """Addresses of masters, for readers that must see every stored message."""

    def __init__(self, brokers: ClusterMasters) -> None:
        self._brokers = brokers

    async def address_of(self, queue: Queue, *, refresh: bool = False) -> str:
        """Return the address of a queue's master."""
        return self._brokers.address(queue.broker)


class BrokerQueue:
    """One queue of one broker: a ``firearrow.spark.jobs.resend.sender.TargetQueue``."""

    def __init__(self, brokers: ClusterMasters, place: Queue) -> None:
        self._brokers = brokers
        self._place = place
        self._clock = SystemClock()

    def end(self) -> int:
        """Return the queue offset of the next message."""
        place = self._place
        fields: dict[str, FieldValue] = {"topic": place.topic, "queueId": place.queue_id}
        answer = self._brokers.call(place.broker, RequestCode.GET_MAX_OFFSET, fields)
        return read_number(answer, "offset", self._brokers.address(place.broker))

    def properties(self, start: int) -> Iterator[dict[str, str]]:
        """Yield the properties of its messages from an offset on."""
        options, broker = PullOptions(GROUP), self._place.broker
        address = self._brokers.address(broker)
        at = start
        while True:
            fields = options.fields(self._place, at, PULL_MESSAGES)
            answer = self._brokers.answer(broker, RequestCode.PULL_MESSAGE, fields)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return
            if answer.code != 0 and answer.code not in _AGAIN:
                raise BrokerError.of(answer.code, answer.remark, address)
            for view in iter_records(answer.body):
                yield view.properties
            following = read_number(answer, "nextBeginOffset", address)
            if answer.code != 0 and following <= at:
                return  # the broker has no messages behind the offset
            at = following

    def views(self, span: Span) -> Iterator[MessageView]:
        """Yield its messages between two offsets. Raises DataLost if one of them is deleted."""
        for records in self._brokers.read(self._place, span):
            yield from iter_records(records)

    def send(self, members: Sequence[BatchMember], sys_flag: int) -> None:
        """Send messages to exactly this queue; they are acknowledged on return.

        Several messages are a batch. A large one goes alone: a broker accepts the same size for a body as for a batch,
        and a batch is larger than its bodies.
        """
        is_batch = len(members) > 1 or member_bytes(members[0]) <= BATCH_BYTES
        fields = send_fields(GROUP, self._place, self._clock.now_ms(), batch=is_batch)
        fields["f"] = sys_flag
        code, body = RequestCode.SEND_BATCH_MESSAGE, b""
        if is_batch:
            body = encode_batch(members)
        else:
            code = RequestCode.SEND_MESSAGE_V2
            flag, body, properties = members[0]
            fields |= {"h": flag, "i": properties.decode()}
        try:
            self._brokers.call(self._place.broker, code, fields, body)
        except NotDurable:
            return  # stored and visible; a retry would send it twice
        except BrokerError as error:
            remark = f"{error.remark}; {len(members)} messages to {self._place}"
            raise type(error)(error.code, remark, error.address) from None
