"""Which function serves which request code, and what is decided before it is called.

The broker's whole surface is the tables here; what a code is, ``wire.requests`` says. A code
that is in none is answered with 3 by the server (why, ``unserved`` says).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from firearrow.auth.metadata import Metadata
from firearrow.broker.config import BrokerConfig
from firearrow.broker.context import BrokerContext
from firearrow.broker.lite.topics import LiteTopics
from firearrow.broker.pop.books import Books
from firearrow.broker.processors.acks import AckProcessor
from firearrow.broker.processors.admin_auth import AuthProcessor
from firearrow.broker.processors.admin_broker import BrokerAdminProcessor
from firearrow.broker.processors.admin_groups import GroupAdminProcessor
from firearrow.broker.processors.admin_topics import TopicAdminProcessor
from firearrow.broker.processors.asking import AskingProcessor
from firearrow.broker.processors.assignment import AssignmentProcessor
from firearrow.broker.processors.clients import ClientProcessor
from firearrow.broker.processors.lite import LiteProcessor
from firearrow.broker.processors.lite_admin import LiteAdminProcessor
from firearrow.broker.processors.notifications import NotificationProcessor
from firearrow.broker.processors.offsets import OffsetProcessor
from firearrow.broker.processors.peeking import PeekProcessor
from firearrow.broker.processors.pop import PopProcessor
from firearrow.broker.processors.progress import ProgressProcessor
from firearrow.broker.processors.pull import PullProcessor
from firearrow.broker.processors.query import QueryProcessor
from firearrow.broker.processors.recall import RecallProcessor
from firearrow.broker.processors.replies import ReplyProcessor
from firearrow.broker.processors.rollback import RollbackProcessor
from firearrow.broker.processors.send import SendProcessor
from firearrow.broker.processors.send_back import SendBackProcessor
from firearrow.broker.processors.transactions import TransactionProcessor
from firearrow.errors import BrokerError
from firearrow.net.gathering import Answers as BulkAnswers
from firearrow.net.server import NO_REASONS, Answer, BulkHandler, Handler, Peer, PeerRequest
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import not_supported
from firearrow.wire.frame import AnyCommand
from firearrow.wire.requests import REQUESTS, Row

Check = Callable[[Peer, AnyCommand], None]
"""Raises the BrokerError by which a request is refused before its handler is called."""
Condition = Callable[[Row], Check | None]
"""Gives the check for the requests of a code, once; None if they need none."""


def message_handlers_of(sends: SendProcessor, pulls: PullProcessor) -> dict[int, Handler]:
    """The handlers of the requests that are most of all: messages to and from clients."""
    return _by_number(
        {
            RequestCode.SEND_MESSAGE: sends.send,
            RequestCode.SEND_MESSAGE_V2: sends.send,
            RequestCode.SEND_BATCH_MESSAGE: sends.send_batch,
            RequestCode.PULL_MESSAGE: pulls.pull,
            RequestCode.LITE_PULL_MESSAGE: pulls.pull,
        }
    )


def reply_handlers_of(context: BrokerContext, sends: SendProcessor) -> dict[int, Handler]:
    """The handlers of what consumers answer to messages."""
    replies = ReplyProcessor(context, sends)
    return _by_number({RequestCode.SEND_REPLY_MESSAGE: replies.reply, RequestCode.SEND_REPLY_MESSAGE_V2: replies.reply})


def bulk_handlers_of(
    sends: SendProcessor, transactions: TransactionProcessor, pops: PopProcessor, acks: AckProcessor
) -> dict[int, BulkHandler]:
    """The handlers of several requests of one code at once."""
    return {
        int(RequestCode.SEND_BATCH_MESSAGE): sends.send_batches,
        int(RequestCode.END_TRANSACTION): transactions.end_several,
        int(RequestCode.POP_MESSAGE): pops.pop_several,
        int(RequestCode.ACK_MESSAGE): acks.ack_several,
    }


def bulk_send_backs_of(sends_back: SendBackProcessor) -> dict[int, BulkHandler]:
    """The same for messages that are sent back: their answers may wait for the disk."""
    return {int(RequestCode.CONSUMER_SEND_MSG_BACK): sends_back.send_back_several}


def handlers_of(context: BrokerContext, sends_back: SendBackProcessor) -> dict[int, Handler]:
    """The handlers of all other requests."""
    queries = QueryProcessor(context)
    offsets = OffsetProcessor(context)
    clients = ClientProcessor(context)
    asking = AskingProcessor(context)
    assignment = AssignmentProcessor(context)
    others = _admin_handlers_of(context) | _progress_handlers_of(context)
    return others | _by_number(
        {
            RequestCode.CONSUMER_SEND_MSG_BACK: sends_back.send_back,
            RequestCode.QUERY_MESSAGE: queries.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: queries.view_message,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: queries.search_offset,
            RequestCode.GET_MAX_OFFSET: queries.max_offset,
            RequestCode.GET_MIN_OFFSET: queries.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: queries.earliest_store_time,
            RequestCode.QUERY_CONSUME_QUEUE: queries.queue_entries,
            RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: offsets.commit,
            RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.all,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offsets.reset,
            RequestCode.HEART_BEAT: clients.heartbeat,
            RequestCode.UNREGISTER_CLIENT: clients.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_ids,
            RequestCode.LOCK_BATCH_MQ: clients.lock,
            RequestCode.UNLOCK_BATCH_MQ: clients.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: clients.check_config,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: clients.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: clients.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: clients.producers,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: clients.subscription,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: asking.statuses,
            RequestCode.GET_CONSUMER_RUNNING_INFO: asking.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: asking.consume_directly,
            RequestCode.QUERY_ASSIGNMENT: assignment.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: assignment.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: assignment.modes,
        }
    )


def _admin_handlers_of(context: BrokerContext) -> dict[int, Handler]:
    """The handlers of what administrators ask of topics, groups and the broker."""
    topics = TopicAdminProcessor(context)
    groups = GroupAdminProcessor(context)
    broker = BrokerAdminProcessor(context)
    return _by_number(
        {
            RequestCode.UPDATE_AND_CREATE_TOPIC: topics.put,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.put_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
            RequestCode.DELETE_TOPIC_IN_BROKER_LIST: topics.delete_all,
            RequestCode.GET_ALL_TOPIC_CONFIG: topics.list_all,
            RequestCode.GET_TOPIC_CONFIG: topics.get,
            RequestCode.GET_TOPIC_STATS_INFO: topics.status,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topics.consumers,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.put,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.put_list,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.list_all,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete,
            RequestCode.DELETE_SUBSCRIPTIONGROUP_LIST: groups.delete_all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.get,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: groups.forbid,
            RequestCode.UPDATE_BROKER_CONFIG: broker.update_config,
            RequestCode.GET_BROKER_CONFIG: broker.config,
            RequestCode.GET_BROKER_RUNTIME_INFO: broker.runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: broker.counter,
            RequestCode.SET_COMMITLOG_READ_MODE: broker.read_log,
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: broker.check_queues,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: broker.clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: broker.clean_topics,
            RequestCode.DELETE_EXPIRED_COMMITLOG: broker.clean_log,
            RequestCode.RECALL_MESSAGE: RecallProcessor(context).recall,
            RequestCode.GET_TIMER_CHECK_POINT: broker.timer_progress,
            RequestCode.GET_TIMER_METRICS: broker.timer_counts,
            RequestCode.GET_BROKER_HA_STATUS: broker.ha_status,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: broker.cold_limits,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: broker.reset_master_flush,
            RequestCode.GET_ALL_DELAY_OFFSET: broker.delays,
        }
    )


def transaction_handlers_of(transactions: TransactionProcessor) -> dict[int, Handler]:
    """The handlers of what is asked of transactions."""
    return _by_number(
        {RequestCode.END_TRANSACTION: transactions.end, RequestCode.RESUME_CHECK_HALF_MESSAGE: transactions.resume}
    )


NOTING: Final = frozenset(
    {int(RequestCode.ACK_MESSAGE), int(RequestCode.BATCH_ACK_MESSAGE), int(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)}
)
"""What is said of popped messages."""


def pop_handlers_of(
    context: BrokerContext, books: Books, lite: LiteTopics, pops: PopProcessor, acks: AckProcessor
) -> dict[int, Handler]:
    """The handlers of pops and of what becomes of popped messages."""
    lites = LiteProcessor(context, lite)
    admin = LiteAdminProcessor(context, lite)
    notifications = NotificationProcessor(context, books, lites)
    return _by_number(
        {
            RequestCode.POP_MESSAGE: pops.pop,
            RequestCode.PEEK_MESSAGE: PeekProcessor(context, books).peek,
            RequestCode.NOTIFICATION: notifications.notify,
            RequestCode.POLLING_INFO: notifications.waiting,
            RequestCode.ACK_MESSAGE: acks.ack,
            RequestCode.BATCH_ACK_MESSAGE: acks.ack_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: acks.change_invisible_time,
            RequestCode.POP_ROLLBACK: RollbackProcessor(context, books).roll_back,
            RequestCode.POP_LITE_MESSAGE: lites.pop,
            RequestCode.LITE_SUBSCRIPTION_CTL: lites.subscribe,
            RequestCode.GET_BROKER_LITE_INFO: admin.of_broker,
            RequestCode.GET_PARENT_TOPIC_INFO: admin.of_parent,
            RequestCode.GET_LITE_TOPIC_INFO: admin.of_topic,
            RequestCode.GET_LITE_CLIENT_INFO: admin.of_client,
            RequestCode.GET_LITE_GROUP_INFO: admin.of_group,
            RequestCode.TRIGGER_LITE_DISPATCH: admin.dispatch,
        }
    )


def auth_handlers_of(metadata: Metadata, config: BrokerConfig, *, follows: bool = False) -> dict[int, Handler]:
    """The handlers of requests about users and what they may do; a slave ``follows``."""
    auth = AuthProcessor(metadata, config, follows=follows)
    return _by_number(
        {
            RequestCode.AUTH_CREATE_USER: auth.create_user,
            RequestCode.AUTH_UPDATE_USER: auth.update_user,
            RequestCode.AUTH_DELETE_USER: auth.delete_user,
            RequestCode.AUTH_GET_USER: auth.user,
            RequestCode.AUTH_LIST_USER: auth.users,
            RequestCode.AUTH_CREATE_ACL: auth.put_acl,
            RequestCode.AUTH_UPDATE_ACL: auth.put_acl,
            RequestCode.AUTH_DELETE_ACL: auth.delete_acl,
            RequestCode.AUTH_GET_ACL: auth.acl,
            RequestCode.AUTH_LIST_ACL: auth.acls,
        }
    )


def _progress_handlers_of(context: BrokerContext) -> dict[int, Handler]:
    """The handlers of requests about how far groups are."""
    progress = ProgressProcessor(context)
    return _by_number(
        {
            RequestCode.GET_CONSUME_STATS: progress.progress,
            RequestCode.GET_BROKER_CONSUME_STATS: progress.all_progress,
            RequestCode.QUERY_CONSUME_TIME_SPAN: progress.time_spans,
            RequestCode.QUERY_CORRECTION_OFFSET: progress.correction,
            RequestCode.CLONE_GROUP_OFFSET: progress.clone,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: progress.topics,
        }
    )


def _by_number(handlers: Mapping[RequestCode, Handler]) -> dict[int, Handler]:
    return {int(code): handler for code, handler in handlers.items()}  # ints are found faster


class Admission:
    """Decides by conditions, asked in their order, whether a request is handled at all.

    Where no condition has a check for a code, its handler is called as it is: then admission costs
    a message nothing.
    """

    def __init__(self, conditions: Sequence[Condition] = ()) -> None:
        self._conditions = tuple(conditions)

    def before(
        self, handlers: Mapping[int, Handler], unserved: Mapping[int, str] = NO_REASONS
    ) -> Mapping[int, Handler]:
        """Give handlers that are only called for what is admitted.

        Who is not admitted is not told either what is ``unserved``, and why.
        """
        if not self._conditions:
            return handlers
        answers = {code: _answer_unserved(code, why) for code, why in unserved.items()}
        return {code: self._guarded(code, it) for code, it in (answers | {**handlers}).items()}

    def before_bulk(self, handlers: Mapping[int, BulkHandler]) -> Mapping[int, BulkHandler]:
        """The same for several requests at once: if one is not admitted, each goes its own way,
        on which it is refused."""
        if not self._conditions:
            return handlers
        return {code: self._guarded_bulk(code, handler) for code, handler in handlers.items()}

    def _check_of(self, code: int) -> Check | None:
        """All checks of a code, which must have a row."""
        row = REQUESTS[RequestCode(code)]
        checks = [check for it in self._conditions if (check := it(row)) is not None]
        if len(checks) < 2:
            return checks[0] if checks else None

        def check_all(peer: Peer, request: AnyCommand) -> None:
            for check in checks:
                check(peer, request)

        return check_all

    def _guarded(self, code: int, handler: Handler) -> Handler:
        check = self._check_of(code)
        if check is None:
            return handler

        def handle(peer: Peer, request: AnyCommand) -> Answer:
            check(peer, request)
            return handler(peer, request)

        return handle

    def _guarded_bulk(self, code: int, handler: BulkHandler) -> BulkHandler:
        check = self._check_of(code)
        if check is None:
            return handler

        def handle(requests: Sequence[PeerRequest]) -> BulkAnswers:
            try:
                for peer, request in requests:
                    check(peer, request)
            except BrokerError:
                return None
            return handler(requests)

        return handle


def _answer_unserved(code: int, reason: str) -> Handler:
    def answer(_: Peer, __: AnyCommand) -> Answer:
        return not_supported(code, reason)

    return answer
