"""Admin service about messages: look them up, send one, let a consumer consume one.

A look-up by id or key asks the brokers' indexes. One by a subscription or a lite topic reads the queues of the topic
one after the other; its cursor is the place of the next message.

Source: ``admin.proto`` of rocketmq-apis.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from firearrow.client.session.answers import read_body
from firearrow.clock import Clock
from firearrow.errors import BrokerError, MessageError
from firearrow.javanumbers import LONG_MAX
from firearrow.message import properties as keys_of
from firearrow.message.ids import decode_offset_id
from firearrow.message.model import MessageView
from firearrow.message.record import decode_record, iter_records
from firearrow.proxy import messages as m
from firearrow.proxy.adminasking import Asking
from firearrow.proxy.admingroups import member_of
from firearrow.proxy.delivery import keys_in, message_of
from firearrow.proxy.producing import Producing
from firearrow.proxy.statuses import ProxyError, status
from firearrow.proxy.times import set_time, time_ms
from firearrow.proxy.validation import check_group, check_topic, is_blank
from firearrow.wire.client_bodies import TAG, DirectResult
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.headers import ConsumeDirectly, PullMessage, QueryMessage, QueueHeader, SearchOffset, ViewMessage

MESSAGES_DEFAULT: Final = 32
MESSAGES_MAX: Final = 1000  # of one answer
BYTES_MAX: Final = 3 * 1024 * 1024  # of their bodies: several clients take no larger answer than 4 MiB
FOUND_MAX: Final = 64  # in the index of one broker
PULLED_MAX: Final = 32
PULLS_MAX: Final = 100  # for one answer; the next one continues
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
SUBSCRIBES: Final = 4  # flag of a pull: it has an expression
_RESULTS: Final = {"CR_SUCCESS": m.Code.OK, "CR_COMMIT": m.Code.OK, "CR_RETURN_NULL": m.Code.MESSAGE_CORRUPTED}


class _Window(NamedTuple):
    """Range of store times, both ends included."""

    begin_ms: int
    end_ms: int


class _Found(NamedTuple):
    """Message and the broker that stores it."""

    broker: str
    view: MessageView


class _Place(NamedTuple):
    """Place in a queue; the offset is None for the first message of the window."""

    broker: str
    queue_id: int
    offset: int | None = None

    def __str__(self) -> str:
        return f"{self.broker}:{self.queue_id}:{self.offset}"


class MessageAdmin:
    """Handlers of the calls about messages."""

    def __init__(self, producing: Producing, clock: Clock) -> None:
        self._producing = producing
        self._clock = clock

    async def query(self, asking: Asking, request: m.ListMessageRequest) -> m.ListMessageResponse:
        """Return messages of a topic."""
        brokers = await asking.brokers_of(request.topic.name)
        if request.broker_name:
            brokers = [name for name in brokers if name == request.broker_name]
        kind = request.WhichOneof("search_key")
        if kind == "message_id":
            found = await _by_id(asking, brokers, request.topic.name, request.message_id)
            return _page(request, [it.view for it in found])
        if kind == "message_key":
            return _page(request, await _by_key(asking, brokers, request))
        return await _Scan(asking, brokers, request).run()

    async def verify(self, asking: Asking, request: m.VerifyMessageRequest) -> m.VerifyMessageResponse:
        """Let a consumer consume a message now, and return its result."""
        topic, group, client_id = request.topic.name, request.group.name, request.client_id
        check_topic(topic)
        check_group(group)
        await member_of(asking, group, client_id)
        found = await _by_id(asking, await asking.brokers_of(topic), topic, request.message_id)
        if not found:
            raise ProxyError(m.Code.MESSAGE_NOT_FOUND, f"topic {topic} has no message {request.message_id[:255]}")
        broker, view = found[0]
        header = ConsumeDirectly(group, client_id, view.offset_message_id, topic)
        answer = await asking.answer(broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        assert answer is not None, "no code is an absence"
        result = read_body(answer, DirectResult, "result of a consumer")
        code = _RESULTS.get(result.consume_result or "", m.Code.FAILED_TO_CONSUME_MESSAGE)
        return m.VerifyMessageResponse(status=status(code, None if code == m.Code.OK else _reason(result)))

    async def send(self, asking: Asking, request: m.AdminSendMessageRequest) -> m.AdminSendMessageResponse:
        """Store a message, as a producer's send does."""
        message = m.Message(
            topic=request.topic,
            user_properties=request.user_properties,
            system_properties=request.system_properties,
            body=request.body,
        )
        system = message.system_properties
        if request.HasField("tag"):
            system.tag = request.tag
        if request.key:
            system.keys.append(request.key)
        if is_blank(system.message_id):
            system.message_id = secrets.token_hex(16).upper()
        if not system.message_type:
            system.message_type = m.MessageType.NORMAL
        if not system.HasField("born_timestamp"):
            set_time(system.born_timestamp, self._clock.now_ms())
        answer = await self._producing.send(asking.context, m.SendMessageRequest(messages=[message]))
        return m.AdminSendMessageResponse(status=answer.status, message_id=system.message_id)


def _reason(result: DirectResult) -> str:
    return ": ".join(filter(None, (result.consume_result, result.remark)))


# --- the index ---


async def _by_id(asking: Asking, brokers: Sequence[str], topic: str, message_id: str) -> list[_Found]:
    """Return the messages with a unique id of their sender, or the one with an offset message id."""
    if is_blank(message_id):
        raise ProxyError(m.Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    header = QueryMessage(topic, message_id, FOUND_MAX, 0, LONG_MAX, "U", unique_key_query=True)
    found = [it for it in await _indexed(asking, brokers, header) if it.view.unique_key == message_id]
    return found or await _at_place(asking, brokers, topic, message_id)


async def _at_place(asking: Asking, brokers: Sequence[str], topic: str, message_id: str) -> list[_Found]:
    try:
        place = decode_offset_id(message_id)
    except MessageError:
        return []
    header = ViewMessage(place.physical_offset, topic)
    absent = ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND, ResponseCode.NO_MESSAGE
    answers = await asking.answers(brokers, RequestCode.VIEW_MESSAGE_BY_ID, header, absent)
    views = [_Found(broker, decode_record(answer.body)) for broker, answer in answers.items()]
    return [it for it in views if it.view.topic == topic and it.view.offset_message_id == message_id.upper()]


async def _by_key(asking: Asking, brokers: Sequence[str], request: m.ListMessageRequest) -> list[MessageView]:
    """Return the messages with a key, the newest first. The index has hashes, so others are left out here."""
    key, window = request.message_key, _window(request)
    if is_blank(key):
        raise ProxyError(m.Code.ILLEGAL_MESSAGE_KEY, "message key cannot be empty")
    header = QueryMessage(request.topic.name, key, FOUND_MAX, window.begin_ms, window.end_ms, "K")
    views = [it.view for it in await _indexed(asking, brokers, header)]
    found = [view for view in views if key in keys_in(view.properties.get(keys_of.KEYS, ""))]
    if request.HasField("queue_id"):
        found = [view for view in found if view.queue_id == request.queue_id]
    return sorted(found, key=lambda view: -view.store_timestamp_ms)


async def _indexed(asking: Asking, brokers: Sequence[str], header: QueryMessage) -> list[_Found]:
    answers = await asking.answers(brokers, RequestCode.QUERY_MESSAGE, header, (ResponseCode.QUERY_NOT_FOUND,))
    return [_Found(broker, view) for broker, answer in answers.items() for view in iter_records(answer.body)]


def _window(request: m.ListMessageRequest) -> _Window:
    begin_ms = max(0, time_ms(request.begin_timestamp)) if request.HasField("begin_timestamp") else 0
    end_ms = time_ms(request.end_timestamp) if request.HasField("end_timestamp") else LONG_MAX
    if begin_ms > end_ms:
        raise ProxyError(m.Code.BAD_REQUEST, "the time range ends before it begins")
    return _Window(begin_ms, end_ms)


def _limit(request: m.ListMessageRequest) -> int:
    wanted = request.page_size if request.HasField("page_size") else request.max_message_nums
    return min(wanted, MESSAGES_MAX) if wanted > 0 else MESSAGES_DEFAULT


def _skipped(request: m.ListMessageRequest) -> int:
    """Return the count of messages on the pages before the requested one."""
    return max(0, request.page_num - 1) * _limit(request) if request.HasField("page_num") else 0


def _page(request: m.ListMessageRequest, views: Sequence[MessageView]) -> m.ListMessageResponse:
    """Return the messages of a page, or those behind the cursor, which is their count until there."""
    first, limit = _skipped(request), _limit(request)
    if request.scroll_id:
        if not request.scroll_id.isdecimal() or len(request.scroll_id) > len(str(LONG_MAX)):
            raise ProxyError(m.Code.BAD_REQUEST, "the scroll id is not from an answer")
        first = int(request.scroll_id)
    answer = m.ListMessageResponse(status=status(m.Code.OK))
    room = BYTES_MAX
    for number, view in enumerate(views[first:], first):
        room -= len(view.body)
        if number - first == limit or (room < 0 and answer.messages):
            answer.scroll_id = str(number)
            break
        answer.messages.append(message_of(view))
    if not answer.messages:
        answer.status.CopyFrom(status(m.Code.MESSAGE_NOT_FOUND, "no message is found"))
    return answer


# --- the queues ---


class _Scan:
    """Messages of the queues of a topic, in the order of queues and offsets, within a time range."""

    def __init__(self, asking: Asking, brokers: Sequence[str], request: m.ListMessageRequest) -> None:
        self._asking = asking
        self._brokers = brokers
        self._request = request
        self._topic = request.topic.name
        self._window = _window(request)
        self._lite_topic = request.lite_topic or None
        self._skip = 0 if request.scroll_id else _skipped(request)
        self._limit = _limit(request)
        self._room = BYTES_MAX
        self._pulls = PULLS_MAX
        self._answer = m.ListMessageResponse(status=status(m.Code.OK))

    async def run(self) -> m.ListMessageResponse:
        """Read until the answer is full, or the queues are read."""
        begun = _place_in(self._request.scroll_id) if self._request.scroll_id else None
        queues = await self._queues()
        if begun is not None:
            known = [place[:2] for place in queues]
            if begun[:2] not in known:
                raise ProxyError(m.Code.BAD_REQUEST, "the scroll id is not from an answer about this topic")
            queues = [begun, *queues[known.index(begun[:2]) + 1 :]]
        for place in queues:
            left = await self._read(place)
            if left is not None:
                self._answer.scroll_id = str(left)
                break
        if not self._answer.messages and not self._answer.scroll_id:
            self._answer.status.CopyFrom(status(m.Code.MESSAGE_NOT_FOUND, "no message is found"))
        return self._answer

    async def _queues(self) -> list[_Place]:
        if self._lite_topic is not None:
            return [_Place(broker, 0) for broker in self._brokers]
        groups = (await self._asking.brokers.route(self._topic)).groups
        found = [
            _Place(group.broker, queue_id)
            for group in groups
            if group.broker in self._brokers
            for queue_id in range(max(group.read_queues, group.write_queues))
        ]
        if self._request.HasField("queue_id"):
            return [place for place in found if place.queue_id == self._request.queue_id]
        return found

    async def _read(self, place: _Place) -> _Place | None:
        """Read a queue; return the place where the next answer continues, None at the queue's end."""
        offset = await self._first(place) if place.offset is None else place.offset
        expression = self._request.subscription or "*"
        while True:
            if not self._pulls:
                if self._skip:
                    raise ProxyError(m.Code.BAD_REQUEST, "the page is too far behind the first: use the scroll id")
                return place._replace(offset=offset)
            self._pulls -= 1
            header = PullMessage(
                TOOLS_GROUP,
                self._topic,
                place.queue_id,
                offset,
                PULLED_MAX,
                SUBSCRIBES,
                subscription=expression,
                expression_type=TAG,
                max_msg_bytes=BYTES_MAX,
                lite_topic=self._lite_topic,
            )
            answer = await self._asking.send(place.broker, RequestCode.PULL_MESSAGE, header)
            if answer.code == ResponseCode.SUCCESS:
                for view in iter_records(answer.body):
                    if view.store_timestamp_ms > self._window.end_ms:
                        return None
                    if not self._add(view):
                        return place._replace(offset=view.queue_offset)
            elif answer.code == ResponseCode.PULL_NOT_FOUND:
                return None
            elif answer.code not in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
                raise BrokerError.of(answer.code, answer.remark, place.broker)
            following = int(answer.ext.get("nextBeginOffset", offset))
            if following <= offset or following >= int(answer.ext.get("maxOffset", 0)):
                return None
            offset = following

    def _add(self, view: MessageView) -> bool:
        """Add a message to the answer unless it is full; return False then."""
        if view.store_timestamp_ms < self._window.begin_ms:
            return True
        if self._skip:
            self._skip -= 1
            return True
        found = self._answer.messages
        if len(found) >= self._limit or (found and self._room < len(view.body)):
            return False
        self._room -= len(view.body)
        found.append(message_of(view))
        return True

    async def _first(self, place: _Place) -> int:
        """Return the offset of the first message of the time range."""
        queue = self._topic, place.queue_id
        if self._window.begin_ms:
            header = SearchOffset(*queue, self._window.begin_ms, lite_topic=self._lite_topic)
            answer = await self._asking.answer(place.broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        elif self._lite_topic is not None:
            return 0  # a pull below the first message answers with the first
        else:
            answer = await self._asking.answer(place.broker, RequestCode.GET_MIN_OFFSET, QueueHeader(*queue))
        assert answer is not None, "no code is an absence"
        return max(0, int(answer.ext.get("offset", 0)))


def _place_in(text: str) -> _Place:
    broker, _, rest = text.rpartition(":")[0].rpartition(":")
    offset = text.rpartition(":")[2]
    if not broker or not all(it.isdecimal() and len(it) < 20 for it in (rest, offset)):
        raise ProxyError(m.Code.BAD_REQUEST, "the scroll id is not from an answer")
    return _Place(broker, int(rest), int(offset))
