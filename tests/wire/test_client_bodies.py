"""Bodies of client requests: what clients send is understood, what Java prints is printed."""

import pytest

from firearrow.errors import BrokerError
from firearrow.wire import fastjson
from firearrow.wire.client_bodies import (
    ConsumeStats,
    Heartbeat,
    LockRequest,
    LockResult,
    MessageQueue,
    OffsetWrapper,
    SubscriptionGroupConfig,
    TopicOffset,
    TopicStats,
    body_of,
)
from firearrow.wire.command import request

# As the Java client sends it.
HEARTBEAT = (
    b'{"clientID":"10.0.0.1@7","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[65],"expressionType":"TAG",'
    b'"subString":"A","subVersion":1795210273741,"tagsSet":["A"],"topic":"T"}],"unitMode":false}],'
    b'"heartbeatFingerprint":-7,"producerDataSet":[{"groupName":"p"}],"withoutSub":false}'
)


def test_a_heartbeat_is_read_and_written_as_java_does() -> None:
    beat = body_of(request(34, body=HEARTBEAT), Heartbeat)
    assert beat.client_id == "10.0.0.1@7"
    assert beat.heartbeat_fingerprint == -7
    (consumer,) = beat.consumer_data_set
    assert consumer.subscription_data_set[0].code_set == [65]
    assert beat.producer_data_set[0].group_name == "p"
    assert fastjson.dumps(beat) == HEARTBEAT


def test_nulls_and_unknown_fields_count_as_absent() -> None:
    beat = body_of(request(34, body=b'{"clientID":"x","consumerDataSet":null,"later":{"a":[1]}}'), Heartbeat)
    assert beat == Heartbeat("x")


@pytest.mark.parametrize("body", [b"", b"{{", b"[]", b'{"consumerDataSet":7}', b"\xff"])
def test_a_bad_body_names_its_request(body: bytes) -> None:
    with pytest.raises(BrokerError, match="request 34 has a bad body") as refusal:
        body_of(request(34, body=body), Heartbeat)
    assert refusal.value.code == 1


def test_queues_are_keys_as_java_prints_them() -> None:
    queue = MessageQueue("T1", "broker-a", 1)
    assert fastjson.dumps(TopicStats({queue: TopicOffset(0, 1, 7)}, 0.1)) == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T1"}:'
        b'{"lastUpdateTimestamp":7,"maxOffset":1,"minOffset":0}},"topicPutTps":0.1}'
    )
    assert fastjson.dumps(ConsumeStats({queue: OffsetWrapper(1, 0, 1, 0)})) == (
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T1"}:'
        b'{"brokerOffset":1,"consumerOffset":0,"lastTimestamp":0,"pullOffset":1}}}'
    )


@pytest.mark.parametrize(
    ("end", "consumed", "pulled", "lag", "diff", "in_flight"),
    [(10, 4, 7, 6, 6, 3), (10, 10, 10, 0, 0, 0), (10, -1, 0, 10, 11, 1), (10, 12, 12, 0, -2, 0), (0, 0, 0, 0, 0, 0)],
)
def test_a_lag_is_counted_from_a_place_in_the_queue(
    end: int, consumed: int, pulled: int, lag: int, diff: int, in_flight: int
) -> None:
    at = OffsetWrapper(end, consumed, pulled)
    assert (at.lag, at.diff, at.in_flight) == (lag, diff, in_flight)
    stats = ConsumeStats({MessageQueue("T", "a", n): at for n in range(3)})
    assert (stats.diff, stats.in_flight) == (3 * diff, 3 * in_flight)


def test_a_lock_request_and_its_answer() -> None:
    body = (
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":3,"topic":"T"}],'
        b'"onlyThisBroker":false}'
    )
    asked = body_of(request(41, body=body), LockRequest)
    assert asked.mq_set == [MessageQueue("T", "b", 3)]
    assert fastjson.dumps(LockResult(asked.mq_set)) == (b'{"lockOKMQSet":[{"brokerName":"b","queueId":3,"topic":"T"}]}')


def test_a_group_has_the_defaults_of_java() -> None:
    assert fastjson.dumps(SubscriptionGroupConfig("G1")) == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"G1","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )
