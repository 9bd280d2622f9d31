"""Looking messages and offsets up: by key (12), by id (33), by time and at the ends (29 to 32).

Source: upstream ``QueryMessageProcessor``, ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from firearrow.broker.context import BrokerContext
from firearrow.errors import BrokerError
from firearrow.net.server import Answer, Peer
from firearrow.store import Boundary, MessageStore
from firearrow.wire.codes import ResponseCode
from firearrow.wire.command import Response, fields_of
from firearrow.wire.frame import AnyCommand
from firearrow.wire.headers import QueryMessage, QueueHeader, SearchOffset, ViewMessage

_QUERY_COUNT_MAX = 64  # upstream: maxMsgsNumBatch
_KEY_LENGTH_MAX = 32_767  # of all properties; to hash a longer one takes time and finds nothing


class QueryProcessor:
    """Answers look-ups."""

    def __init__(self, context: BrokerContext) -> None:
        self._store = context.store

    def query_message(self, peer: Peer, request: AnyCommand) -> Answer:
        """12: records with a key, newest first."""
        header = fields_of(request, QueryMessage)
        if len(header.key) > _KEY_LENGTH_MAX:
            raise BrokerError(
                ResponseCode.QUERY_NOT_FOUND,
                f"no message has a key of {len(header.key)} characters, {_KEY_LENGTH_MAX} are "
                "possible",
            )
        unique = header.unique_key_query
        count = self._store.config.default_query_max_num if unique else header.max_num
        kind = header.index_type or ("U" if unique else "K")
        window = header.begin_timestamp, header.end_timestamp
        wanted = (header.topic, header.key, kind, *window)
        records = self._store.query(*wanted, min(count, _QUERY_COUNT_MAX))
        end_ms, end_offset = self._store.index_end
        fields = {"indexLastUpdateTimestamp": end_ms, "indexLastUpdatePhyoffset": end_offset}
        if not records:
            why = self._store.explain_query(*wanted)
            remark = f"can not find message, maybe time range not correct: {why}"
            return Response(ResponseCode.QUERY_NOT_FOUND, remark, fields)
        return Response(fields=fields, body=b"".join(records))

    def view_message(self, peer: Peer, request: AnyCommand) -> Answer:
        """33: the record at a physical offset."""
        return Response(body=record_at(self._store, fields_of(request, ViewMessage).offset))

    def search_offset(self, peer: Peer, request: AnyCommand) -> Answer:
        """29: the queue offset of a store time."""
        header = fields_of(request, SearchOffset)
        upper = (header.boundary_type or "").upper() == "UPPER"
        boundary = Boundary.UPPER if upper else Boundary.LOWER
        offset = self._store.search_offset(
            header.topic, header.queue_id, header.timestamp, boundary
        )
        return Response(fields={"offset": offset})

    def max_offset(self, peer: Peer, request: AnyCommand) -> Answer:
        """30: the offset that the next message of a queue gets."""
        header = fields_of(request, QueueHeader)
        return Response(
            fields={"offset": self._store.max_queue_offset(header.topic, header.queue_id)}
        )

    def min_offset(self, peer: Peer, request: AnyCommand) -> Answer:
        """31: the first offset of a queue that can be read."""
        header = fields_of(request, QueueHeader)
        return Response(
            fields={"offset": self._store.min_queue_offset(header.topic, header.queue_id)}
        )

    def earliest_store_time(self, peer: Peer, request: AnyCommand) -> Answer:
        """32: the store time of a queue's first message, -1 if there is none."""
        header = fields_of(request, QueueHeader)
        earliest_ms, _ = self._store.time_span(header.topic, header.queue_id)
        return Response(fields={"timestamp": earliest_ms})


def record_at(store: MessageStore, physical_offset: int) -> bytes:
    """The record at a place of the log; BrokerError says why there is none."""
    record = store.record_at(physical_offset)
    if record is None:
        why = store.explain_offset(physical_offset)
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"can not find message by the offset, {physical_offset}: {why}",
        )
    return record
