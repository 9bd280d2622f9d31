"""A live broker under requests that are nearly right: it stores, serves, or says why not."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firearrow.message.batch import encode_batch
from firearrow.message.record import iter_records
from firearrow.wire.codes import FLAG_ONEWAY
from firearrow.wire.command import Command, FieldValue, request
from firearrow.wire.frame import AnyCommand, encode_request
from tests.broker.serving import SUBSCRIPTION, pull_fields, send_fields
from tests.fuzz.strategies import damaged, field_values
from tests.fuzz.targets import BROKER, Stage, running
from tests.fuzz.test_servers import ping, talk

topics = st.sampled_from(["T", "T", "U", "TBW102", "SELF_TEST_TOPIC", "%RETRY%g", "%DLQ%g", "a b", ""])
pairs = st.lists(
    st.tuples(
        st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "WAIT", "TRAN_MSG", "X", "a_b", ""]),
        st.sampled_from(["\x01", "\x01", ""]),
        st.sampled_from(["A", "a b", "1", "true", "", "键", "\x01", "x" * 40_000, "\0", '"%d"']),
    ).map("".join),
    max_size=5,
).map("\x02".join)
batches = st.lists(
    st.tuples(st.integers(-5, 5), st.binary(max_size=30), st.binary(max_size=20)), min_size=1, max_size=5
).map(encode_batch)
small = st.sampled_from([-1, 0, 1, 2, 3, 2**31 - 1, -(2**31)])
large = small | st.sampled_from([2**31, 2**63 - 1, -(2**63), 2**63])


def with_strange(fields: st.SearchStrategy[dict[str, FieldValue]]) -> st.SearchStrategy[dict[str, FieldValue]]:
    """Fields of which some are replaced or missing."""
    names = sorted(send_fields() | pull_fields())
    strange = st.dictionaries(st.sampled_from(names), field_values, max_size=2)
    missing = st.lists(st.sampled_from(names), max_size=1)
    return st.builds(
        lambda sound, odd, gone: {name: value for name, value in {**sound, **odd}.items() if name not in gone},
        fields,
        strange,
        missing,
    )


sends = st.builds(
    lambda topic, queue, flag, born, text, more: send_fields(topic, queue, f=flag, g=born, i=text, j=more),
    topics,
    small,
    st.sampled_from([0, 0, 0, 1, 2, 4, 8, 12, 16, 32, 0x80, 0x700, -1]),
    large,
    pairs,
    small,
)
pulls = st.builds(
    lambda offset, topic, queue, most, flags, tags: pull_fields(
        offset, topic=topic, queueId=queue, maxMsgNums=most, sysFlag=flags, subscription=tags, suspendTimeoutMillis=1
    ),
    large,
    topics,
    small,
    small,
    st.sampled_from([SUBSCRIPTION, 0, 1, 7, 15, -1]),
    st.sampled_from(["*", "A", "A || B", "||", "", "|| |"]),
)


@st.composite
def nearly_right(draw: st.DrawFn) -> Command[dict[str, str]]:
    """A send, a batch or a pull that a client might have meant."""
    code = draw(st.sampled_from([310, 310, 320, 11, 361]))
    fields = draw(with_strange(pulls if code in BROKER.held else sends))
    body = draw(batches | st.binary(max_size=50))
    command = request(code, fields, body, oneway=draw(st.sampled_from([False, False, True])))
    command.opaque = draw(st.integers(0, 2**31 - 1))
    command.binary = draw(st.booleans())
    return command


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A broker that lives through all tests here, and is sound at their end."""
    with running(BROKER, tmp_path_factory.mktemp("broker")) as stage:
        yield stage
        assert stage.open_peers() == 0
    assert stage.complaints.records == []


def serves(stage: Stage) -> None:
    """A message goes in and comes out."""
    send = request(310, send_fields("Probe", 0), b"probe", opaque=1)
    [stored] = talk(stage, [encode_request(send)])
    assert stored.code == 0, stored
    wanted = pull_fields(int(stored.ext["queueOffset"]), topic="Probe", sysFlag=SUBSCRIPTION | 2)
    pull = request(11, wanted | {"suspendTimeoutMillis": 10_000}, opaque=2)
    [found] = talk_until_answered(stage, pull)
    assert [view.body for view in iter_records(found.body)] == [b"probe"]


def talk_until_answered(stage: Stage, pull: Command[dict[str, str]]) -> list[AnyCommand]:
    """Pull until the message is dispatched: a pull that waits ends with its connection."""
    pull.ext["suspendTimeoutMillis"] = "0"
    for _ in range(1000):
        answers = talk(stage, [encode_request(pull)])
        if answers[0].code == 0:
            break
    return answers


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(sent=st.lists(nearly_right(), min_size=1, max_size=6))
def test_each_request_is_done_or_refused_with_a_reason(stage: Stage, sent: list[Command[dict[str, str]]]) -> None:
    heard = talk(stage, [b"".join(map(encode_request, sent))])
    must = [c.opaque for c in sent if not c.flag & FLAG_ONEWAY and c.code not in BROKER.held]
    may = [c.opaque for c in sent if not c.flag & FLAG_ONEWAY]
    opaques = [answer.opaque for answer in heard]
    assert all(opaques.count(opaque) == may.count(opaque) for opaque in must)
    assert set(opaques) <= set(may)
    assert all(answer.remark or answer.code == 0 for answer in heard)
    assert stage.complaints.records == []


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_requests_leave_it_serving(stage: Stage, data: st.DataObject) -> None:
    pieces = st.lists(damaged(nearly_right().map(encode_request)), min_size=1, max_size=4)
    talk(stage, data.draw(pieces))
    ping(stage)
    assert stage.complaints.records == []


def test_it_still_stores_and_serves(stage: Stage) -> None:
    serves(stage)
