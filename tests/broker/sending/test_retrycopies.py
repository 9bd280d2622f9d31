"""What becomes of a failed message, read or unread."""

from itertools import takewhile

from hypothesis import example, given
from hypothesis import strategies as st

from firearrow.broker.sending.retrycopies import PlainCopy, copy_of, plain_copies
from firearrow.message import properties
from firearrow.message.hosts import Host, pack_host
from firearrow.message.ids import encode_offset_id
from firearrow.message.record import Content

HOST = Host("127.0.0.1", 10911)
FIRST = "UNIQ_KEY\x01U\x02WAIT\x01true\x02TAGS\x01A\x02"
SILENT = "UNIQ_KEY\x01U\x02TAGS\x01A\x02"  # as other clients than Java's have it
AGAIN = (
    "UNIQ_KEY\x01U\x02WAIT\x01false\x02TAGS\x01A\x02"
    "RETRY_TOPIC\x01T\x02ORIGIN_MESSAGE_ID\x017F0000010000\x02"
    "DELAY\x013\x02REAL_TOPIC\x01%RETRY%g\x02REAL_QID\x010\x02"
)
DELAY = ("DELAY", "REAL_TOPIC", "REAL_QID")


def content(text: str, topic: str = "T", sys_flag: int = 0, times: int = 0) -> Content:
    host = pack_host(HOST)
    return Content(
        topic, 1, 2, 3, 4, sys_flag, 5, host, 6, host, times, b"body", text.encode()
    )  # fmt: skip


def plain_copy(failed: Content) -> PlainCopy | None:
    """The plain copy of one message, if it has one."""
    return next(iter(plain_copies([failed])), None)


PAIRS = [
    "UNIQ_KEY\x01U", "WAIT\x01true", "WAIT\x01false", "XWAIT\x01true", "WAIT\x01", "é\x01ü", "",
    "RETRY_TOPIC\x01R", "RETRY_TOPIC\x01é", "XRETRY_TOPIC\x01R", "RETRY_TOPIC\x01", "x",
    "ORIGIN_MESSAGE_ID\x017F", "ORIGIN_MESSAGE_ID\x01 ", "ORIGIN_MESSAGE_ID\x01", "TRAN_MSG\x01x",
    "DELAY\x013", "DELAY\x01x", "REAL_TOPIC\x01T", "REAL_QID\x010", "REAL_QID\x01-1",
    "TIMER_OUT_MS\x011", "INNER_MULTI_DISPATCH\x01q", "TRANSACTION_CHECK_TIMES\x011",
    "TRAN_PREPARED_QUEUE_OFFSET\x011", "MSG_REGION\x01R\x02TRACE_ON\x01true", "KEYS\x01DELAY",
    "TRACE_ON\x01a_b", "XUNIQ_KEY\x01U", "KEYS\x01\x03",
]  # fmt: skip
pairs = st.lists(st.sampled_from(PAIRS), max_size=3).map("\x02".join)
texts = st.builds(
    "{}{}{}{}".format,
    st.builds(lambda text: text and text + "\x02", pairs),
    st.sampled_from(["", FIRST, SILENT, AGAIN, AGAIN[:-1], AGAIN[20:]]),
    pairs,
    st.sampled_from(["", "\x02"]),
)


@given(texts, st.sampled_from(["T", "é", "%RETRY%g"]), st.sampled_from([0, 1, 4, 8, 12]))
@example(FIRST, "T", 0)
@example(FIRST[:-1], "T", 0)
@example(SILENT, "T", 0)
@example("", "T", 0)
@example(AGAIN, "%RETRY%g", 8)
def test_a_plain_copy_is_what_it_would_be_if_all_were_read(text: str, topic: str, sys_flag: int) -> None:
    failed = content(text, topic, sys_flag)
    copy, draft = plain_copy(failed), copy_of(failed)
    if copy is None:
        assert text not in (FIRST, FIRST[:-1], SILENT, AGAIN) or sys_flag & 4
        return
    expected = {**properties.parse(draft.stored), **draft.properties}
    stored, origin = copy
    assert origin == expected["RETRY_TOPIC"]
    found = properties.parse(stored)
    assert found == {name: value for name, value in expected.items() if name not in DELAY}
    assert not stored.endswith(b"\x02")
    assert not sys_flag & 4
    if text.encode() == properties.encode(properties.parse(text)):
        kept = {name: value for name, value in draft.properties.items() if name not in DELAY}
        assert stored + b"\x02" == draft.stored + properties.encode(kept)


@given(st.lists(st.one_of(st.sampled_from([FIRST, FIRST + "KEYS\x01k\x02", SILENT, AGAIN]), texts)))
@example([FIRST, "UNIQ_KEY\x01U\x02WAIT\x01true\x02WAIT\x01true\x02", SILENT])
@example([FIRST, "UNIQ_KEY\x01U\x02WAIT\x01true", FIRST])
@example([FIRST, "KEYS\x01\x03\x02WAIT\x01true\x02"])
@example([FIRST[:-1], FIRST, FIRST[:-1]])
@example([FIRST[:-1], SILENT[:-1], AGAIN])
def test_plain_copies_of_several_are_those_of_each(several: list[str]) -> None:
    failed = [content(text) for text in several]
    assert plain_copies(failed) == [*takewhile(bool, map(plain_copy, failed))]


def test_a_copy_says_where_its_message_was_at_first() -> None:
    first = copy_of(content(FIRST))
    assert first.properties == {
        "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": encode_offset_id(HOST, 3),
    }  # fmt: skip
    assert properties.parse(first.stored) == {"UNIQ_KEY": "U", "WAIT": "false", "TAGS": "A"}
    again = copy_of(content(AGAIN, "%RETRY%g", times=1))
    assert again.reconsume_times == 2
    assert again.properties == properties.parse(AGAIN)
    for text in (FIRST, AGAIN):
        copy = plain_copy(content(text))
        assert copy is not None
        assert copy[1] == "T"


def test_who_does_not_say_whether_he_waits_does_so_no_more() -> None:
    """Again and again: the copy's own copy is plain, too."""
    copy = plain_copy(content(SILENT))
    assert copy is not None
    assert properties.parse(copy[0]) == {
        "UNIQ_KEY": "U", "TAGS": "A", "WAIT": "false",
        "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": encode_offset_id(HOST, 3),
    }  # fmt: skip
    waited = copy[0].decode() + "\x02DELAY\x013\x02REAL_TOPIC\x01%RETRY%g\x02REAL_QID\x010\x02"
    again = plain_copy(content(waited, "%RETRY%g", times=1))
    assert again == copy
