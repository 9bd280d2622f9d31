"""Offsets as JSON, from options, limited, and against what a queue still holds."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firearrow.client.queues import Bound, Queue, Span
from firearrow.errors import ConfigError, DataLost
from firearrow.spark.offsets import (
    EARLIEST,
    LATEST,
    Loss,
    Position,
    begins,
    ends,
    from_json,
    is_due,
    lag,
    limit_bytes,
    limit_rows,
    new_end,
    parse,
    plan,
    require_whole,
    resolve,
    row_count,
    to_json,
    with_idle,
)

A0, A1, B0 = Queue("T", "a", 0), Queue("T", "a", 1), Queue("T", "b", 0)
U0 = Queue("U", "a", 0)

queues = st.builds(Queue, st.sampled_from(["T", "%RETRY%g", "ü"]), st.sampled_from("ab"), st.integers(0, 12))
offset_maps = st.dictionaries(queues, st.integers(0, 2**63 - 1), max_size=9)
span_maps = st.dictionaries(
    queues, st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda p: Span(p[0], sum(p))), max_size=9
)


def found_nowhere(queue: Queue, timestamp_ms: int) -> int | None:
    return None


# --- JSON ---


@given(offset_maps)
def test_offsets_survive_json(offsets: dict[Queue, int]) -> None:
    assert parse(json.dumps(to_json(offsets)), "x") == offsets


@given(offset_maps, st.randoms())
def test_equal_offsets_are_one_text(offsets: dict[Queue, int], random: object) -> None:
    items = list(offsets.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    text = json.dumps(to_json(dict(items)))
    assert text == json.dumps(to_json(offsets))
    assert text == json.dumps(json.loads(text), sort_keys=True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", r"^checkpoint='\{' is not JSON: "),
        ("[]", r"^checkpoint: must be a JSON object of topics, but is \[\]$"),
        ('{"T": 3}', r"^checkpoint, topic 'T': must be a JSON object of brokers, but is 3$"),
        ('{"T": {"a": 3}}', r"topic 'T', broker 'a': must be a JSON object of queue ids"),
        ('{"T": {"a": {"x": 3}}}', r"broker 'a': 'x' is not a queue id"),
        ('{"T": {"a": {"01": 3}}}', r"'01' is not a queue id"),
        ('{"T": {"a": {"0": -1}}}', r"queue 0: -1 is not a queue offset: an integer from 0"),
        ('{"T": {"a": {"0": true}}}', r"queue 0: True is not a queue offset"),
        ('{"T": {"a": {"0": "7"}}}', r"queue 0: '7' is not a queue offset"),
    ],
)
def test_json_of_another_shape_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(text, "checkpoint")


def test_earliest_and_latest_are_offsets_only_in_options() -> None:
    nested = {"T": {"a": {"0": -2, "1": -1}}}
    assert from_json(nested, "x", symbolic=True) == {A0: EARLIEST, A1: LATEST}
    with pytest.raises(ConfigError, match=r"-3 .* -2 \(earliest\) or -1 \(latest\)$"):
        from_json({"T": {"a": {"0": -3}}}, "x", symbolic=True)


# --- options ---

BOUNDS = {A0: Bound(5, 9), A1: Bound(0, 0), U0: Bound(2, 3)}


def offsets_of(text: str, option: str = "startingOffsets") -> dict[Queue, int]:
    return resolve(Position.of(option, text), BOUNDS, found_nowhere)


def test_words_name_the_ends_of_each_queue() -> None:
    assert offsets_of("earliest") == {A0: 5, A1: 0, U0: 2}
    assert offsets_of(" Latest") == {A0: 9, A1: 0, U0: 3}


def test_json_names_some_queues_and_the_rest_is_whole() -> None:
    text = '{"T": {"a": {"0": 7, "1": -1}}}'
    assert offsets_of(text) == {A0: 7, A1: 0, U0: 2}
    assert offsets_of(text, "endingOffsets") == {A0: 7, A1: 0, U0: 3}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("newest", r"^option startingOffsets='newest': must be earliest, latest or JSON of"),
        ('{"V": {"a": {"0": 1}}}', r"topic 'V' is not read; these are: T, U$"),
        ('{"T": {"a": {"7": 1}}}', r"topic 'T' has no queue a/7; it has a/0, a/1$"),
        ('{"T": {"c": {"0": 1}}}', r"topic 'T' has no queue c/0; it has a/0, a/1$"),
        ('{"T": {"a": {"0": -7}}}', r"^option startingOffsets, topic 'T'.* -7 is not a queue offset"),
    ],
)
def test_a_wrong_position_is_one_clear_error(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        offsets_of(text)


def test_a_time_is_the_first_message_from_then_on() -> None:
    def offset_at(queue: Queue, timestamp_ms: int) -> int | None:
        return {A0: 6, U0: 2}.get(queue) if timestamp_ms == 1000 else None

    position = Position.of("startingOffsets", "latest", 1000)
    assert resolve(position, BOUNDS, offset_at) == {A0: 6, A1: 0, U0: 2}
    with pytest.raises(ConfigError, match=r"^option startingTimestamp=1000: queue 1 of topic 'T' on a has no message"):
        resolve(position, BOUNDS, offset_at, fail_where_none=True)


def test_each_queue_may_have_a_time_of_its_own() -> None:
    def offset_at(queue: Queue, timestamp_ms: int) -> int | None:
        return {(A0, 1_795_000_000_000): 6, (U0, 1_794_960_000_000): 2}.get((queue, timestamp_ms))

    times = '{"T": {"a": {"0": 1795000000000}}, "U": {"a": {"0": "2026-11-18T00:00"}}}'
    for otherwise, place in (("latest", BOUNDS[A1].latest), ('{"T": {"a": {"1": 7}}}', 7)):
        position = Position.of("startingOffsets", otherwise, times)
        assert resolve(position, BOUNDS, offset_at) == {A0: 6, A1: place, U0: 2}
    for text, complaint in (
        ("{", "^option startingTimestamp='{' is not JSON"),
        ('{"T": {"a": {"0": -1}}}', "^option startingTimestamp, topic 'T'.* -1 is before 1970"),
        ('{"T": {"a": {"0": "x"}}}', "^option startingTimestamp, topic 'T'.* 'x' is not a time"),
        ('{"T": {"a": {"0": 1795000000}}}', "queue 0: 1795000000 looks like seconds"),
        ('{"T": {"a": {"7": 0}}}', "^option startingTimestamp: topic 'T' has no queue a/7"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            resolve(Position.of("startingOffsets", "latest", text), BOUNDS, offset_at)


# --- what is read, what is lost ---


def test_a_plan_is_what_is_between() -> None:
    found = plan({A0: 6, A1: 0}, {A0: 9, A1: 0, U0: 3}, BOUNDS)
    assert found.spans == {A0: Span(6, 9), U0: Span(2, 3)}
    assert found.losses == []
    require_whole(found.losses)


@pytest.mark.parametrize(
    ("start", "end", "bound", "span", "lost"),
    [
        (2, 8, Bound(5, 9), Span(5, 8), [Span(2, 5)]),
        (2, 4, Bound(5, 9), None, [Span(2, 4)]),
        (2, 8, Bound(0, 4), Span(2, 4), [Span(4, 8)]),
        (7, 8, Bound(0, 4), Span(0, 4), [Span(7, 7), Span(4, 8)]),
        (7, 4, Bound(0, 4), Span(0, 4), [Span(7, 7)]),
        (7, 7, Bound(7, 7), None, []),
        (2, 8, None, None, [Span(2, 8)]),
        (8, 8, None, None, []),
    ],
)
def test_what_is_gone_is_told(start: int, end: int, bound: Bound | None, span: Span | None, lost: list[Span]) -> None:
    found = plan({A0: start}, {A0: end}, {A0: bound} if bound else {})
    assert found.spans == ({A0: span} if span else {})
    assert [loss.span for loss in found.losses] == lost


def test_a_loss_is_an_error_that_names_it() -> None:
    losses = [Loss(Queue("T", "a", n), Span(2, 5), "it begins at 5") for n in range(7)]
    with pytest.raises(
        DataLost,
        match=r"queue 0 of topic 'T' on a: offsets 2 to 5, it begins at 5; .*; and 2 more"
        r" \(failOnDataLoss=false skips",
    ):
        require_whole(losses)


@given(span_maps, span_maps)
def test_a_plan_stays_within_what_is_held(wanted: dict[Queue, Span], held: dict[Queue, Span]) -> None:
    bounds = {queue: Bound(*span) for queue, span in held.items()}
    starts = {queue: span.start for queue, span in wanted.items()}
    found = plan(starts, {queue: span.end for queue, span in wanted.items()}, bounds)
    for queue, span in found.spans.items():
        assert bounds[queue].earliest <= span.start < span.end <= bounds[queue].latest
    whole = {q: s for q, s in wanted.items() if s.start < s.end}
    if all(q in held and held[q].start <= s.start and s.end <= held[q].end for q, s in wanted.items()):
        assert (found.spans, found.losses) == (whole, [])
    elif found.spans != whole:
        assert found.losses


def within(span: Span, other: Span) -> bool:
    return other.start <= span.start <= span.end <= other.end


# --- how much ---


def lengths(spans: Mapping[Queue, Span]) -> dict[Queue, int]:
    return {queue: span.end - span.start for queue, span in spans.items()}


@given(span_maps, st.integers(1, 3000))
def test_a_limit_is_kept_exactly_and_in_proportion(spans: dict[Queue, Span], rows_max: int) -> None:
    limited = limit_rows(spans, rows_max)
    total = row_count(spans)
    assert row_count(limited) == min(total, rows_max)
    waiting = {queue: rows for queue, rows in lengths(spans).items() if rows}
    for queue, rows in lengths(limited).items():
        assert limited[queue].start == spans[queue].start
        assert 1 <= rows <= waiting[queue]
        assert rows <= waiting[queue] * rows_max / total + 2 or total <= rows_max
    assert len(limited) == min(len(waiting), rows_max)


@given(span_maps, st.integers(1, 40))
@example({A0: Span(1, 3), A1: Span(1, 2), Queue("%RETRY%g", "a", 0): Span(5, 6)}, 1)
def test_no_queue_starves(spans: dict[Queue, Span], rows_max: int) -> None:
    """As many steps as there are queues, and each has been read from."""
    left = {queue: span for queue, span in spans.items() if span.start < span.end}
    begun = set()
    for _ in range(len(left)):
        step = limit_rows(left, rows_max)
        begun |= set(step)
        left = {queue: Span(step.get(queue, Span(s.start, s.start)).end, s.end) for queue, s in left.items()}
    assert begun == set(left)


def test_queues_that_are_idle_keep_their_turn() -> None:
    """A queue that gets messages only now and then does not take the turns of another."""
    known = dict.fromkeys((A0, A1, B0), 0)
    begun = []
    for has_one in (0, 0, 1, 0, 1, 1, 0, 1, 1):
        spans = {queue: Span(known[queue], 50) for queue in (A0, B0)}
        spans[A1] = Span(known[A1], known[A1] + has_one)
        ((queue, span),) = limit_rows(with_idle(spans, known), 1).items()
        known[queue] = span.end
        begun.append(queue)
    assert all({A0, B0} <= set(begun[step : step + 3]) for step in range(7)), begun


def test_bytes_are_limited_by_the_size_of_messages() -> None:
    spans = {A0: Span(0, 100), A1: Span(0, 100)}
    sizes = {A0: 10.0, A1: 30.0}
    assert limit_bytes(spans, 4000, sizes) == spans
    assert lengths(limit_bytes(spans, 1000, sizes)) == {A0: 25, A1: 25}
    assert row_count(limit_bytes(spans, 1, sizes)) == 1


@given(span_maps, st.integers(1, 10_000))
def test_a_limit_of_bytes_lets_something_through(spans: dict[Queue, Span], bytes_max: int) -> None:
    limited = limit_bytes(spans, bytes_max, dict.fromkeys(spans, 100.0))
    rows = row_count(limited)
    assert rows * 100 <= bytes_max or rows == 1 or rows == row_count(spans) == 0
    assert (rows == 0) == (row_count(spans) == 0)


@pytest.mark.parametrize(
    ("rows", "waited_ms", "expected"), [(10, 0, True), (9, 999, False), (9, 1000, True), (0, 5000, False)]
)
def test_a_step_waits_for_enough_but_not_for_ever(rows: int, waited_ms: int, expected: bool) -> None:
    assert is_due(rows, 10, waited_ms, 1000) is expected


def test_new_queues_come_in_with_their_first_message() -> None:
    end = new_end({A0: 6, B0: 4}, BOUNDS)
    assert end == {A0: 9, B0: 4, U0: 3}
    assert ends({A0: 6, B0: 4}, {A0: Span(6, 8)}) == {A0: 8, B0: 4}
    assert begins({A0: 6}, {A0: Span(7, 8), U0: Span(2, 3)}) == {A0: 6, U0: 2}


def test_lag_is_what_is_behind_the_end() -> None:
    assert lag({A0: 6, A1: 9}, {A0: 9, A1: 8, U0: 3}) == {A0: 3, A1: 0, U0: 3}
