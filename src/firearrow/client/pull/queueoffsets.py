"""Queue offsets at brokers: ends of queues, offsets by time, progress of a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from firearrow.client.pull.rangereader import PullOptions
from firearrow.client.queues import NOT_STORED, Bound, Mark, Queue, RecordTimes
from firearrow.client.routing.routes import Routes
from firearrow.client.session.answers import read_body, read_number
from firearrow.errors import BrokerError, MessageError, RemoteProtocolError, TopicNotFound
from firearrow.logs import Log
from firearrow.message.model import MessageView
from firearrow.message.record import iter_records
from firearrow.net.client import Client
from firearrow.net.futures import Pending
from firearrow.wire.bodies import PERM_READ, KVTable, Route
from firearrow.wire.client_bodies import TopicStats
from firearrow.wire.codes import RequestCode, ResponseCode
from firearrow.wire.command import FieldValue
from firearrow.wire.frame import AnyCommand

log: Final = Log(__name__)

IN_FLIGHT_MAX: Final = 256  # requests about queues

T = TypeVar("T")


class QueueOffsets:
    """Asks brokers on behalf of a consumer group."""

    def __init__(self, client: Client, routes: Routes, group: str) -> None:
        self._client = client
        self._routes = routes
        self._options = PullOptions(group)

    async def ends(self, routes: Iterable[tuple[str, Route]]) -> dict[Queue, Bound]:
        """Readable queues of topics, by their routes, and the content of each now."""
        asked = [
            (topic, queues.broker_name, queues.read_queue_nums)
            for topic, route in routes
            for queues in route.queue_datas
            if queues.perm & PERM_READ
        ]

        async def ask(place: tuple[str, str, int]) -> Pending:
            topic, broker, _ = place
            code, fields = RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}
            return await self._client.begin(self._routes.address(broker), code, fields)

        found: dict[Queue, Bound] = {}
        for (topic, broker, queues), answer in await in_turns(asked, ask):
            try:
                stats = read_body(_sound(answer, self._routes.address(broker)), TopicStats, "ends of queues")
            except TopicNotFound:
                continue  # the broker has just lost the topic, or does not know it yet
            for place, ends in stats.offset_table.items():
                if place.queue_id < queues:
                    latest = max(ends.min_offset, ends.max_offset)
                    bound = Bound(ends.min_offset, latest, ends.last_update_timestamp)
                    found[Queue(topic, broker, place.queue_id)] = bound
        return found

    # --- times ---

    async def offset_at(self, queue: Queue, timestamp_ms: int) -> int | None:
        """First offset of a message stored at or after a time; None without one.

        Brokers before 5.0 answer with the nearest message in time, and with any of several messages of the same
        millisecond. So the answer is only where the search begins.
        """
        first = await self._offset(queue, RequestCode.GET_MIN_OFFSET)
        end = await self._offset(queue, RequestCode.GET_MAX_OFFSET)
        guess = await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=timestamp_ms)

        async def holds(offset: int) -> bool:
            return await self._stored_ms(queue, offset) >= timestamp_ms

        found = await partition_point(holds, first, end, guess)
        return found if found < end else None

    async def offsets_at(self, queues: Iterable[Queue], timestamp_ms: int) -> dict[Queue, int]:
        """Offset of a time in each queue, as brokers answer it: only approximate.

        See ``offset_at``.
        """
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answers = await in_turns(queues, lambda queue: self._begin(queue, code, timestamp=timestamp_ms))
        return {queue: await self._number(queue, answer) for queue, answer in answers}

    async def _begin(self, queue: Queue, code: int, **more: FieldValue) -> Pending:
        fields = {"topic": queue.topic, "queueId": queue.queue_id, **more}
        return await self._client.begin(await self._routes.address_of(queue), code, fields)

    async def _offset(self, queue: Queue, code: int, **more: FieldValue) -> int:
        return await self._number(queue, await (await self._begin(queue, code, **more)))

    async def _number(self, queue: Queue, answer: AnyCommand) -> int:
        address = await self._routes.address_of(queue)
        return read_number(_sound(answer, address), "offset", address)

    async def _stored_ms(self, queue: Queue, queue_offset: int) -> int:
        """Store time of a message; -1 if it is deleted."""
        [(_, record)] = await self._first_records({queue: queue_offset})
        return -1 if record is None else record.store_timestamp_ms

    async def _first_records(self, places: Mapping[Queue, int]) -> list[tuple[Queue, MessageView | None]]:
        """Pull one message at each queue offset."""
        answers = await self.pull_each(places, lambda queue: self._options.fields(queue, places[queue], 1))
        return [(queue, _first_record(records, address)) for queue, records, address in answers]

    async def pull_each(
        self, queues: Iterable[Queue], fields_of: Callable[[Queue], Mapping[str, FieldValue]]
    ) -> list[tuple[Queue, bytes, str]]:
        """Pull from each queue once; return its records, empty without any, and the broker's address."""

        async def ask(queue: Queue) -> Pending:
            address = await self._routes.address_of(queue)
            return await self._client.begin(address, RequestCode.PULL_MESSAGE, fields_of(queue))

        answers = await in_turns(queues, ask)
        return [(queue, answer.body, await self._routes.address_of(queue)) for queue, answer in answers]

    async def marks(self, places: Mapping[Queue, int]) -> dict[Queue, Mark]:
        """Marks of the existing messages at queue offsets."""
        return {
            queue: Mark(record.physical_offset, record.store_timestamp_ms)
            for queue, record in await self._first_records(places)
            if record is not None and record.queue_offset <= places[queue]  # or of an inner batch
        }

    async def stored_at(self, broker: str, physical_offset: int) -> RecordTimes | None:
        """Record of a broker's log at a place: ``NOT_STORED`` if no record begins there. None if the broker does not
        answer, or the place is deleted."""
        address = self._routes.address(broker)
        fields: dict[str, FieldValue] = {"offset": physical_offset}
        try:
            answer = await self._client.call(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                return None
            return NOT_STORED if await self._has_place(address, physical_offset) else None
        record = _first_record(answer.body, address)
        if record is None or record.physical_offset != physical_offset:
            return NOT_STORED
        return RecordTimes(record.store_timestamp_ms, record.born_timestamp_ms)

    async def _has_place(self, address: str, physical_offset: int) -> bool:
        """Tell whether the log still has a place, if the broker answers that."""
        try:
            answer = await self._client.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        except BrokerError:
            return False
        facts = read_body(answer, KVTable, "facts of a broker").table
        start = facts.get("commitLogMinOffset", "")
        return start.isdecimal() and int(start) <= physical_offset

    # --- progress ---

    async def commit(self, offsets: Mapping[Queue, int]) -> None:
        """Commit to the brokers how far the group has read.

        An offset that can't be committed is logged: the next commit repeats it, or has gone beyond it.
        """
        group, code = self._options.group, RequestCode.UPDATE_CONSUMER_OFFSET
        left = list(offsets.items())
        for first in range(0, len(left), IN_FLIGHT_MAX):
            asked = list[tuple[Queue, Pending]]()
            for queue, queue_offset in left[first : first + IN_FLIGHT_MAX]:
                try:
                    begun = await self._begin(queue, code, consumerGroup=group, commitOffset=queue_offset)
                except (OSError, BrokerError) as error:
                    log.warning("offset is not committed", extra={**queue.fields, "error": error})
                else:
                    asked.append((queue, begun))
            for queue, pending in asked:
                try:
                    _sound(await pending, self._routes.address(queue.broker))
                except (OSError, BrokerError) as error:
                    log.warning("offset is not committed", extra={**queue.fields, "error": error})


async def in_turns(items: Iterable[T], begin: Callable[[T], Awaitable[Pending]]) -> list[tuple[T, AnyCommand]]:
    """Begin a request about each item, some hundred at a time, and return the answers in order."""
    left = list(items)
    found: list[tuple[T, AnyCommand]] = []
    for first in range(0, len(left), IN_FLIGHT_MAX):
        turn = left[first : first + IN_FLIGHT_MAX]
        begun = [await begin(item) for item in turn]
        answers = [await pending for pending in reversed(begun)]  # the last one: to wake once
        found += zip(turn, reversed(answers), strict=True)
    return found


async def partition_point(holds: Callable[[int], Awaitable[bool]], start: int, end: int, guess: int) -> int:
    """First number of ``start`` to ``end`` that ``holds`` accepts; ``end`` without one.

    It must be true for all later numbers. A right ``guess`` costs two calls; otherwise the cost is about twice the
    logarithm of its error.
    """
    guess = min(max(guess, start), end)
    step = 1
    low, high = start, end
    if guess == end or await holds(guess):
        high = guess
        while high > low:
            probe = max(low, high - step)
            if not await holds(probe):
                low = probe + 1
                break
            high = probe
            step *= 2
    else:
        low = guess + 1
        while low < high:
            probe = min(high - 1, low + step - 1)
            if await holds(probe):
                high = probe
                break
            low = probe + 1
            step *= 2
    while low < high:
        middle = (low + high) // 2
        if await holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _sound(answer: AnyCommand, address: str) -> AnyCommand:
    """The answer; BrokerError (the class for its code) unless the code is 0."""
    if answer.code != 0:
        raise BrokerError.of(answer.code, answer.remark, address)
    return answer


def _first_record(records: bytes, address: str) -> MessageView | None:
    try:
        return next(iter_records(records), None)
    except MessageError as error:
        raise RemoteProtocolError(f"{address} sent bytes that are not messages: {error}") from None
