"""Whatever a client sends to these processors, it gets an answer with a code."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firearrow.wire.command import Response
from tests.broker.fakes import FakeBroker

CODES = (14, 15, 17, 18, 21, 25, 26, 28, 34, 35, 38, 41, 42, 46)
CODES_OF_ADMINS = (200, 201, 202, 203, 204, 207, 208, 215, 225, 300, 305, 315, 351, 352)

FIELDS = st.dictionaries(
    st.sampled_from(
        [
            *("topic", "consumerGroup", "group", "groupName", "producerGroup", "clientID"),
            *("queueId", "commitOffset", "perm", "readQueueNums", "writeQueueNums", "order"),
            *("attributes", "topicFilterType", "topicSeq", "maxTopicNum", "dataVersion"),
            *("statsName", "statsKey", "cleanOffset", "topicList", "setZeroIfNotFound"),
        ]
    ),
    st.sampled_from(["", "0", "1", "-1", "7", "true", "T", "g", "{}", "99999999999", "+a=b"])
    | st.text(max_size=8),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [
        *("clientID", "consumerDataSet", "producerDataSet", "groupName", "heartbeatFingerprint"),
        *(
            "subscriptionDataSet",
            "topic",
            "subString",
            "codeSet",
            "mqSet",
            "clientId",
            "brokerName",
        ),
        *("topicConfigList", "topicName", "attributes", "groupConfigList", "subscriptionData"),
    ]
)
BODIES = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=60)
@pytest.mark.parametrize("code", [*CODES, *CODES_OF_ADMINS])
@given(fields=FIELDS, body=BODIES | st.binary(max_size=20))
def test_every_request_is_answered(code: int, fields: dict[str, Any], body: Any) -> None:
    answer = FakeBroker().call(code, fields, body)
    assert isinstance(answer, Response)
    assert answer.code == 0 or answer.remark
