"""One round of monitoring logs the groups that are behind, and their lag."""

from __future__ import annotations

import pytest

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.offsets import one_round
from firearrow.cli.mqadmin.table import row_of
from firearrow.clock import SystemClock
from firearrow.wire.bodies import TopicList
from firearrow.wire.client_bodies import (
    ClientConnection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    MessageQueue,
    OffsetWrapper,
)
from firearrow.wire.command import Response
from tests.client.admin.servers import administering, route_to, run


def test_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        queues = {MessageQueue("T", "a", n): OffsetWrapper(9, 4 + n) for n in range(2)}
        replies = {
            105: Response(),
            203: ConsumerConnection([ClientConnection("c", "1:2")]),
            206: TopicList(["%RETRY%g", "T"]),
            208: ConsumeStats(queues),
            307: ConsumerRunningInfo({"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}),
        }
        row = row_of("startMonitoring")
        assert row is not None
        async with administering(replies) as (admin, answers):
            answers.replies[105] = route_to(answers.address)
            await one_round(Invocation(row, {}, admin, SystemClock()))

    run(scene)
    out, err = capsys.readouterr()
    assert out == ""
    assert "consumerGroup=g, topic=T, undoneMsgsTotal=9, undoneMsgsSingleMQ=5, " in err
    assert err.count("\n") == 3
