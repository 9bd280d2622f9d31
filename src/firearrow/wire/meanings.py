"""Causes and cures of each response code.

Source of the causes: the processors of broker, name server and client in RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from firearrow.errors import BrokerError
from firearrow.wire.codes import ResponseCode as Code


class Meaning(NamedTuple):
    """Cause and cure of a response code."""

    cause: str
    cure: str


MEANINGS: Final[Mapping[Code, Meaning]] = {
    Code.SUCCESS: Meaning("The request was done.", "Nothing: this is no error."),
    Code.SYSTEM_ERROR: Meaning(
        "The server failed at the request: an internal error, a header or body that it can't "
        "read, or a message that is not there any more. The remark says which.",
        "Read the remark, then the log of the server at that time. A request that is sound may be tried again.",
    ),
    Code.SYSTEM_BUSY: Meaning(
        "The server sheds load: requests waited too long or are too many, or the page cache kept "
        "a put waiting. The remark begins with `[OVERLOAD]`, `[TIMEOUT_CLEAN_QUEUE]`, "
        "`[PCBUSY_CLEAN_QUEUE]` or `[REJECTREQUEST]`.",
        "Try again after a pause, or on another broker. If it lasts: `firearrow doctor sends`; "
        "add brokers, send batches, or use faster disks.",
    ),
    Code.REQUEST_CODE_NOT_SUPPORTED: Meaning(
        "The server does not serve this kind of request: it is older than the client, a name "
        "server in place of a broker (or the reverse), or the feature is off.",
        "Check the address that was asked, and the versions of client and server.",
    ),
    Code.TRANSACTION_FAILED: Meaning(
        "The transaction could not be carried out.",
        "Send the message again; the half that may be there is checked back or given up.",
    ),
    Code.FLUSH_DISK_TIMEOUT: Meaning(
        "The message is stored and will be delivered, but was not on the disk in time "
        "(`flushDiskType=SYNC_FLUSH`, `syncFlushTimeout`), or the disk refused it.",
        "Don't send it again unless duplicates do no harm. Look at the disk: its latency, and the "
        "log of the broker for errors of it.",
    ),
    Code.SLAVE_NOT_AVAILABLE: Meaning(
        "The message is stored on the master, but no slave was there to take it "
        "(`brokerRole=SYNC_MASTER`), or a slave was asked for what only a master does.",
        "Start the slave, and see with `firearrow mqadmin haStatus` whether it keeps up.",
    ),
    Code.FLUSH_SLAVE_TIMEOUT: Meaning(
        "The message is stored, or the change made, on the master, but a slave did not confirm it "
        "in time (`slaveTimeout`).",
        "Don't send it again unless duplicates do no harm. Look at the network to the slave and at its disk.",
    ),
    Code.MESSAGE_ILLEGAL: Meaning(
        "A message can't be as it is: too large (`maxMessageSize`), properties too long, a topic "
        "name that can't be, a delay that is too far away, or a batch of unlike messages.",
        "Change the message as the remark says.",
    ),
    Code.SERVICE_NOT_AVAILABLE: Meaning(
        "The broker does not take messages now: its disk is full, it shuts down, is a slave, or "
        "has not been started long enough.",
        "Send elsewhere. Look at `writesRefused` in `firearrow mqadmin brokerStatus` and at the disk.",
    ),
    Code.VERSION_NOT_SUPPORTED: Meaning("Client or server is too old for the request.", "Update the older of the two."),
    Code.NO_PERMISSION: Meaning(
        "It is not allowed: broker or topic can't be read or written (`perm`, "
        "`brokerPermission`), the group is disabled or forbidden to read the topic, the topic is "
        "one of the system, the signature is wrong, or access control denies it.",
        "`firearrow doctor GROUP` for a consumer; `firearrow mqadmin updateTopicPerm`, "
        "`updateSubGroup`, or the ACL; check access key and secret.",
    ),
    Code.TOPIC_NOT_EXIST: Meaning(
        "There is no such topic on this broker, or no route to it on the name server.",
        "Check its name and the namespace, create it, and wait some seconds until clients have the new route.",
    ),
    Code.TOPIC_EXIST_ALREADY: Meaning("A topic of this name exists.", "Use it, change it, or choose another name."),
    Code.PULL_NOT_FOUND: Meaning(
        "There is no new message at this offset. Consumers get this all the time.", "Nothing: the client pulls again."
    ),
    Code.PULL_RETRY_IMMEDIATELY: Meaning(
        "The messages at this offset are not for this subscription, or have just been deleted.",
        "Nothing: the client pulls again at the offset that it was given.",
    ),
    Code.PULL_OFFSET_MOVED: Meaning(
        "The offset is out of the queue: before its first message (deleted meanwhile) or beyond its last one.",
        "Clients go on at an offset that there is. Messages that were deleted before they were "
        "consumed are lost: keep them for longer (`fileReservedTime`), or consume faster.",
    ),
    Code.QUERY_NOT_FOUND: Meaning(
        "The requested offset, key, route or configuration does not exist.",
        "Check the request. For the offset of a new group this is expected.",
    ),
    Code.SUBSCRIPTION_PARSE_FAILED: Meaning(
        "The expression of tags or SQL92 of a subscription can't be read.",
        "Correct the expression; the remark says where it is wrong.",
    ),
    Code.SUBSCRIPTION_NOT_EXIST: Meaning(
        "The broker does not know that this group subscribes to this topic: members subscribe to "
        "different topics and each heartbeat replaces the other's, or none has come yet.",
        "Let all members of a group subscribe to the same topics; `firearrow doctor GROUP`.",
    ),
    Code.SUBSCRIPTION_NOT_LATEST: Meaning(
        "The broker has an older subscription than the one the consumer pulls with.",
        "It passes with the next heartbeat, unless members of the group subscribe differently: "
        "`firearrow doctor GROUP`.",
    ),
    Code.SUBSCRIPTION_GROUP_NOT_EXIST: Meaning(
        "There is no such consumer group, and the broker creates none automatically "
        "(`autoCreateSubscriptionGroup=false`).",
        "Create the group on each broker, or correct its name.",
    ),
    Code.FILTER_DATA_NOT_EXIST: Meaning(
        "The broker has no SQL92 expression of this group for the topic.",
        "It passes with the next heartbeat. Check `enablePropertyFilter`.",
    ),
    Code.FILTER_DATA_NOT_LATEST: Meaning(
        "The broker has an older SQL92 expression of the group than the consumer.",
        "It passes with the next heartbeat, unless members of the group want different things.",
    ),
    Code.INVALID_PARAMETER: Meaning(
        "A parameter of the request is missing or can't have this value.", "Correct it as the remark says."
    ),
    Code.TRANSACTION_SHOULD_COMMIT: Meaning("The transaction ought to be committed.", "Commit it."),
    Code.TRANSACTION_SHOULD_ROLLBACK: Meaning("The transaction ought to be rolled back.", "Roll it back."),
    Code.TRANSACTION_STATE_UNKNOW: Meaning(
        "It is not known yet what becomes of the transaction.",
        "Wait: the producer is asked again (`transactionCheckInterval`).",
    ),
    Code.TRANSACTION_STATE_GROUP_WRONG: Meaning(
        "The transaction belongs to another producer group.", "End it with a producer of the group that began it."
    ),
    Code.NO_BUYER_ID: Meaning(
        "The message lacks a key that deployments in several units demand.", "Set it, or do not use units."
    ),
    Code.NOT_IN_CURRENT_UNIT: Meaning("The message belongs to another unit of the deployment.", "Send it to its unit."),
    Code.CONSUMER_NOT_ONLINE: Meaning(
        "No client of the group, or not the one that was named, is connected to this broker.",
        "Start it, or check the name. Offline groups keep their offsets.",
    ),
    Code.CONSUME_MSG_TIMEOUT: Meaning(
        "A consumer that was asked to do something did not answer in time.",
        "See with `firearrow mqadmin consumerStatus -s` what its threads do.",
    ),
    Code.NO_MESSAGE: Meaning(
        "There is no message with this id or key, or it has been deleted.",
        "Check id, key and topic, and how long messages are kept (`fileReservedTime`).",
    ),
    Code.POLLING_FULL: Meaning(
        "As many POP requests as may do so wait for messages (`maxPopPollingSize`, `popPollingSize`).",
        "Poll with fewer requests at a time, or raise the limit.",
    ),
    Code.POLLING_TIMEOUT: Meaning(
        "A POP request waited, and no message came. Consumers get this all the time.", "Nothing: the client asks again."
    ),
    Code.BROKER_NOT_EXIST: Meaning(
        "No broker of this name is known.",
        "Check its name with `firearrow mqadmin clusterList`, and that it registers with this name server.",
    ),
    Code.BROKER_DISPATCH_NOT_COMPLETE: Meaning(
        "Queues and index are behind the log, as after a start.",
        "Wait until `dispatchBehindBytes` in `firearrow mqadmin brokerStatus` is down.",
    ),
    Code.BROADCAST_CONSUMPTION: Meaning(
        "The group broadcasts: its offsets are with its clients, and the broker knows none.",
        "Ask the clients (`firearrow mqadmin consumerStatus`).",
    ),
    Code.FLOW_CONTROL: Meaning(
        "The server limits how much it takes of this kind of request now.", "Slow down, and try again after a pause."
    ),
    Code.NOT_LEADER_FOR_QUEUE: Meaning(
        "Another broker has this queue of a static topic now.",
        "Let the client refresh its route; it does so automatically after a while.",
    ),
    Code.ILLEGAL_OPERATION: Meaning(
        "The operation is not possible in this state, as ending a transaction that is over, or "
        "recalling a message that was delivered.",
        "Read the remark; to try again does not help.",
    ),
    Code.GO_AWAY: Meaning(
        "The server is about to stop and wants no more requests on this connection.",
        "Reconnect, or use another broker; clients do so automatically.",
    ),
    Code.CONTROLLER_FENCED_MASTER_EPOCH: Meaning(
        "A master told the controller of slaves in sync, but of an earlier epoch than it has now.",
        "Nothing: the broker asks who is master, and follows.",
    ),
    Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH: Meaning(
        "A master changed the set of slaves in sync from a state that is not the latest.",
        "Nothing: the broker asks for the latest, and tries again.",
    ),
    Code.CONTROLLER_INVALID_MASTER: Meaning(
        "A broker that is not the master told the controller of slaves in sync.",
        "Nothing: the broker asks who is master, and follows.",
    ),
    Code.CONTROLLER_INVALID_REPLICAS: Meaning(
        "A set of slaves in sync names a broker that the controller does not know.",
        "See with `firearrow mqadmin getSyncStateSet` which brokers there are.",
    ),
    Code.CONTROLLER_MASTER_NOT_AVAILABLE: Meaning(
        "The master is lost, and no broker that had all its messages is there to follow it.",
        "Start one of the brokers in sync. To go on without their last messages: `enableElectUncleanMaster`.",
    ),
    Code.CONTROLLER_INVALID_REQUEST: Meaning(
        "A heartbeat has no broker id.", "Look who sends it: brokers in controller mode have one."
    ),
    Code.CONTROLLER_BROKER_NOT_ALIVE: Meaning(
        "A set of slaves in sync names a broker that the controller has not heard lately.",
        "See that this broker reaches all controllers (`controllerAddr`).",
    ),
    Code.CONTROLLER_NOT_LEADER: Meaning(
        "This controller does not lead its group now, or got no agreement from the others.",
        "Ask the one that `firearrow mqadmin getControllerMetaData` names; brokers do so "
        "automatically. If there is none, see that most controllers run and reach each other.",
    ),
    Code.CONTROLLER_BROKER_METADATA_NOT_EXIST: Meaning(
        "The controller knows no broker of this name.",
        "Check the name. A broker in controller mode registers automatically.",
    ),
    Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA: Meaning(
        "Brokers can't be forgotten: one of them lives, or there is none like that.",
        "Stop it first, or say that living ones are meant (`-l`).",
    ),
    Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: Meaning(
        "The controller does not know this broker, or not under this id.",
        "A broker in controller mode registers automatically. If it was forgotten by "
        "`cleanBrokerMetadata`, restart it.",
    ),
    Code.CONTROLLER_MASTER_STILL_EXIST: Meaning(
        "The master lives, so that none was elected.",
        "Nothing: this is no error. To have another one, name it: `electMaster`.",
    ),
    Code.CONTROLLER_ELECT_MASTER_FAILED: Meaning(
        "The broker can't be master: it does not live, or lacks messages that the last one had.",
        "Start one of the brokers in sync. To go on without their last messages: `enableElectUncleanMaster`.",
    ),
    Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED: Meaning(
        "The set of slaves in sync can't be as the master says: it is that already, lacks the "
        "master, or the broker is unknown.",
        "Nothing: the broker asks for the latest set.",
    ),
    Code.CONTROLLER_BROKER_ID_INVALID: Meaning(
        "Another broker has this id already.", "Nothing: the broker asks for another one."
    ),
    Code.LMQ_QUOTA_EXCEEDED: Meaning(
        "There are as many LMQs as the broker may have (`maxLmqConsumeQueueNum`).",
        "Delete those that nobody needs, let them expire (`lite.topic.expiration`), or raise the limit.",
    ),
    Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Meaning(
        "There are as many subscriptions to lite topics as there may be "
        "(`maxLiteSubscriptionCount`, or the limit of the client).",
        "Unsubscribe from unused ones, or raise the limit.",
    ),
    Code.USER_NOT_EXIST: Meaning(
        "There is no such user on this broker.", "`firearrow mqadmin createUser`, on each broker."
    ),
    Code.POLICY_NOT_EXIST: Meaning("No policy says what this user may do.", "`firearrow mqadmin createAcl`."),
}


assert MEANINGS.keys() == set(Code), "each code has a cause and a cure"


def raised_as(code: Code) -> str:
    """Return the class of the error that Firearrow's client raises for a code; ``-`` for success."""
    return "-" if code is Code.SUCCESS else BrokerError.lookup(code).__name__
