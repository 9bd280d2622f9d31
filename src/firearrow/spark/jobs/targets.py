"""Queues of brokers as targets of messages that are sent again, and topics made for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from firearrow.client.answers import read_number
from firearrow.client.pulls import Asking
from firearrow.client.queues import Queue
from firearrow.client.routes import Cluster, create_topic
from firearrow.client.sendfields import send_fields
from firearrow.clock import SystemClock
from firearrow.errors import BrokerError, BrokerUnavailable, ConfigError, NotDurable
from firearrow.message.batch import BatchMember, encode_batch
from firearrow.message.record import iter_records
from firearrow.spark.access import cluster_of
from firearrow.spark.jobs.resending import BATCH_BYTES, member_bytes
from firearrow.spark.options import Options, for_sink
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue

GROUP: Final = "firearrow-resend"
PULL_MESSAGES: Final = 256
_AGAIN: Final = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class Brokers:
    """The masters of a cluster, by name. Raises ConfigError where the options name no cluster."""

    def __init__(self, options: Options) -> None:
        self.cluster: Cluster = cluster_of(options.place, options.access)
        self._addresses: dict[str, str] = {}

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Brokers:
        """Read the options of a sink."""
        return cls(for_sink(options))

    def addresses(self) -> dict[str, str]:
        """Give the address of each broker's master."""
        if not self._addresses:
            self._addresses = self.cluster.masters()
        if not self._addresses:
            raise ConfigError("option nameServer: the cluster has no brokers to write to")
        return self._addresses

    def address(self, broker: str) -> str:
        """Give the address of a broker; BrokerUnavailable if there is none of that name."""
        try:
            return self.addresses()[broker]
        except KeyError:
            raise BrokerUnavailable(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"there is no broker named {broker!r}"
            ) from None

    def create_topic(self, topic: str, broker: str, queues: int) -> None:
        """Make a topic on a broker, or give it so many queues."""
        create_topic(self.cluster.client, self.address(broker), topic, queues)

    def close(self) -> None:
        """Close the connections."""
        self.cluster.client.close()

    def queue(self, place: Queue) -> BrokerQueue:
        """Give a queue to write to."""
        return BrokerQueue(self, place)


class BrokerQueue:
    """One queue of one broker: a ``firearrow.spark.jobs.resending.Target``."""

    def __init__(self, brokers: Brokers, place: Queue) -> None:
        self._brokers = brokers
        self._client = brokers.cluster.client
        self._place = place
        self._clock = SystemClock()

    def end(self) -> int:
        """The queue offset of the next message."""
        place = self._place
        fields: dict[str, FieldValue] = {"topic": place.topic, "queueId": place.queue_id}
        answer = self._client.call(self._address(), RequestCode.GET_MAX_OFFSET, fields)
        return read_number(answer, "offset", self._address())

    def properties(self, start: int) -> Iterator[dict[str, str]]:
        """The properties of its messages from an offset on."""
        asking = Asking(GROUP)
        at = start
        while True:
            fields = asking.fields(self._place, at, PULL_MESSAGES)
            pending = self._client.begin(self._address(), RequestCode.PULL_MESSAGE, fields)
            answer = pending.answer()
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return
            if answer.code != 0 and answer.code not in _AGAIN:
                pending.result()
            for view in iter_records(answer.body):
                yield view.properties
            following = read_number(answer, "nextBeginOffset", self._address())
            if answer.code != 0 and following <= at:
                return  # it was asked for more than it has
            at = following

    def send(self, members: Sequence[BatchMember], sys_flag: int) -> None:
        """Send messages to this queue and no other; they are acknowledged on return.

        Several are a batch. A large one goes alone: what a broker takes of a body it takes of a
        batch as well, and that is more than its bodies.
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
            self._client.call(self._address(), code, fields, body)
        except NotDurable:
            return  # stored and seen; again it would be there twice
        except BrokerError as error:
            remark = f"{error.remark}; {len(members)} messages to {self._place}"
            raise type(error)(error.code, remark, error.address) from None

    def _address(self) -> str:
        return self._brokers.address(self._place.broker)
