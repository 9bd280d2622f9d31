"""Lag, as a listener sees it in the progress of queries."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

from firearrow.client.queues import Queue
from firearrow.spark import LagListener
from firearrow.spark.source.listener import QueueLag

RUN = uuid.uuid4()


def progress(*sources: tuple[str, str], name: str | None = "q") -> Any:
    return SimpleNamespace(
        progress=SimpleNamespace(
            name=name,
            id="the-id",
            runId=RUN,
            sources=[SimpleNamespace(endOffset=end, latestOffset=late) for end, late in sources],
        )
    )


STEP = ('{"T": {"a": {"0": 4}}}', '{"T": {"a": {"0": 9, "1": 2}}}')


def test_lag_is_what_the_last_step_has_left() -> None:
    told: list[tuple[str, list[QueueLag]]] = []
    listener = LagListener(lambda query, lags: told.append((query, lags)))
    assert listener.lag("q") == {}
    listener.onQueryProgress(progress(STEP))
    lags = {Queue("T", "a", 0): 5, Queue("T", "a", 1): 2}
    assert listener.lag("q") == lags
    assert listener.queries() == ["q"]
    assert told == [("q", [QueueLag(*item) for item in lags.items()])]
    listener.onQueryTerminated(SimpleNamespace(runId=RUN))
    assert listener.lag("q") == {}


def test_a_query_without_a_name_has_its_id() -> None:
    listener = LagListener()
    listener.onQueryProgress(progress(STEP, name=None))
    assert listener.queries() == ["the-id"]


def test_other_sources_are_none_of_its_business() -> None:
    listener = LagListener()
    listener.onQueryProgress(progress(("7", "9"), ("None", "null"), ('{"topic":{"0":1}}', "{}")))
    assert listener.queries() == []


def test_prometheus_gets_a_gauge_a_queue() -> None:
    listener = LagListener()
    listener.onQueryProgress(progress(STEP, name='a "name"'))
    assert listener.prometheus().splitlines()[2:] == [
        r'firearrow_stream_lag_messages{query="a \"name\"",topic="T",broker="a",queue="0"} 5',
        r'firearrow_stream_lag_messages{query="a \"name\"",topic="T",broker="a",queue="1"} 2',
    ]
