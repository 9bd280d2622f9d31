"""The scanner against the decoder that reads record by record; tag codes and index keys by columns
against the rules applied to one record at a time."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.message.names import java_hash, tag_code
from firearrow.message.properties import parse
from firearrow.message.record import decode_record, encode_blank, encode_record
from firearrow.message.sysflag import HOSTS_V6_MASK, TRANSACTION_ROLLBACK
from firearrow.store import scan as scan_module
from firearrow.store.scan import ByTopic, Columns, Properties, Stop, scan
from tests.message import strategies as messages
from tests.store.stores import BORN_HOST, STORE_HOST

# Most records of a log resemble each other, so the size classes are few and runs are frequent.
runs = st.lists(st.tuples(messages.records, st.integers(1, 30)).map(lambda pair: [pair[0]] * pair[1]), max_size=6).map(
    lambda groups: [record for group in groups for record in group]
)


def record(body: bytes = b"body", topic: str = "T", properties: bytes = b"") -> bytes:
    return encode_record(topic, body, properties, 1, 2, 3, 4, 0, 5, BORN_HOST, 6, STORE_HOST, 7, 8)


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    """What the columns say of each record."""
    topics, numbers = columns.topics()
    return list(
        zip(
            columns.position.tolist(),
            columns.size.tolist(),
            columns.queue_id.tolist(),
            columns.queue_offset.tolist(),
            columns.physical_offset.tolist(),
            columns.sys_flag.tolist(),
            columns.store_ms.tolist(),
            columns.born_ms.tolist(),
            columns.flag.tolist(),
            columns.body_crc.tolist(),
            columns.reconsume_times.tolist(),
            columns.prepared_offset.tolist(),
            columns.slices(columns.body_start, columns.body_size),
            [topics[number] for number in numbers.tolist()],
            columns.slices(columns.properties_start, columns.properties_size),
            strict=True,
        )
    )


def rows_by_decoder(buffer: bytes, start: int, end: int) -> list[tuple[Any, ...]]:
    """The same, record by record, as far as there are sound ones."""
    found: list[tuple[Any, ...]] = []
    at = start
    while True:
        try:
            view = decode_record(buffer, at, end)
        except MessageError:
            return found
        after = at + view.store_size
        topic = view.topic.encode()
        body_at = at + 88 + 12 * (view.sys_flag & HOSTS_V6_MASK).bit_count()
        topic_at = body_at + len(view.body) + (2 if len(topic) > 127 else 1)
        properties = buffer[topic_at + len(topic) + 2 : after]
        found.append(
            (at, view.store_size, view.queue_id, view.queue_offset, view.physical_offset,
             view.sys_flag, view.store_timestamp_ms, view.born_timestamp_ms, view.flag,
             view.body_crc, view.reconsume_times, view.prepared_transaction_offset, view.body,
             topic, properties)
        )  # fmt: skip
        at = after


ENDINGS = {
    "nothing": (b"", Stop.END),
    "blank": (encode_blank(4096), Stop.BLANK),
    "zeros": (bytes(64), Stop.ZERO),
    "few zeros": (bytes(7), Stop.END),
    "garbage": (b"\xff" * 200, Stop.INVALID),
}


@given(ending=st.sampled_from(sorted(ENDINGS)), sound=runs, before=st.binary(max_size=9))
def test_columns_are_what_the_decoder_reads(ending: str, sound: list[bytes], before: bytes) -> None:
    tail, stop = ENDINGS[ending]
    buffer = before + b"".join(sound) + tail
    columns = scan(buffer, len(before), len(buffer))
    assert rows(columns) == rows_by_decoder(buffer, len(before), len(buffer))
    assert len(columns) == len(sound)
    assert columns.end == len(buffer) - len(tail)
    assert columns.stop is stop
    assert columns.body_crc_holds().all()


@given(sound=runs.filter(bool), data=st.data())
def test_a_log_that_is_cut_anywhere_ends_before_the_cut(sound: list[bytes], data: st.DataObject) -> None:
    buffer = b"".join(sound)
    cut = data.draw(st.integers(0, len(buffer)))
    columns = scan(buffer, 0, cut)
    assert rows(columns) == rows_by_decoder(buffer, 0, cut)
    assert columns.stop is Stop.END
    assert rows(scan(buffer[:cut], 0, cut)) == rows(columns)


@given(sound=runs, most=st.integers(1, 40))
def test_a_scan_goes_on_where_the_last_one_ended(sound: list[bytes], most: int) -> None:
    buffer = b"".join(sound) + encode_blank(100)
    whole = rows(scan(buffer, 0, len(buffer)))
    found: list[tuple[Any, ...]] = []
    at, stop = 0, Stop.FULL
    while stop is Stop.FULL:
        part = scan(buffer, at, len(buffer), most)
        assert len(part) <= most
        assert len(part) == most or part.stop is not Stop.FULL
        found += rows(part)
        at, stop = part.end, part.stop
    assert found == whole
    assert stop is Stop.BLANK


@given(sound=runs.filter(bool), data=st.data())
def test_a_damaged_byte_never_gives_another_answer_than_the_decoder(sound: list[bytes], data: st.DataObject) -> None:
    buffer = bytearray(b"".join(sound))
    for _ in range(data.draw(st.integers(1, 4))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(buffer)
    by_decoder = rows_by_decoder(damaged, 0, len(damaged))
    columns = scan(damaged, 0, len(damaged))
    # The scanner leaves it to its callers to read topics as text, so it may take more.
    assert len(columns) >= len(by_decoder)
    assert [row[:12] for row in rows(columns)][: len(by_decoder)] == [r[:12] for r in by_decoder]


@given(buffer=st.binary(max_size=400), start=st.integers(0, 50), end=st.integers(0, 400))
def test_no_bytes_are_too_much_for_it(buffer: bytes, start: int, end: int) -> None:
    columns = scan(buffer, start, min(end, len(buffer)))
    assert columns.end >= start or not len(columns)
    rows(columns)


@given(head=st.binary(min_size=80, max_size=300), v2=st.booleans())
def test_no_bytes_behind_a_plausible_start_are_too_much(head: bytes, v2: bool) -> None:
    """Size and magic are right; everything else is anything."""
    sound = record()
    magic = b"\xda\xa3\x20" + (b"\xab" if v2 else b"\xa7")
    buffer = sound + (len(head) + 8).to_bytes(4) + magic + head
    columns = scan(buffer, 0, len(buffer))
    assert columns.position.tolist()[0] == 0
    rows(columns)


def test_records_of_one_size_and_other_contents() -> None:
    records = [record(b"%04d" % n, "T" if n % 3 else "U") for n in range(1000)]
    columns = scan(b"".join(records), 0, sum(map(len, records)))
    assert columns.slices(columns.body_start, columns.body_size) == [b"%04d" % n for n in range(1000)]
    topics, numbers = columns.topics()
    assert [topics[n] for n in numbers.tolist()] == [b"T" if n % 3 else b"U" for n in range(1000)]


def test_topics_are_numbered_by_length_and_then_in_order() -> None:
    names = ["UU", "T", "U", "TTT", "UU", "", "TU", "T"]
    buffer = b"".join(record(topic=name) for name in names)
    topics, numbers = scan(buffer, 0, len(buffer)).topics()
    assert topics == [b"", b"T", b"U", b"TU", b"UU", b"TTT"]
    assert [topics[n].decode() for n in numbers.tolist()] == names


def test_a_body_that_does_not_match_its_crc_is_found() -> None:
    records = [record(b"%04d" % n) for n in range(20)]
    buffer = bytearray(b"".join(records))
    buffer[7 * len(records[0]) + 88] ^= 1
    holds = scan(buffer, 0, len(buffer)).body_crc_holds()
    assert holds.tolist() == [n != 7 for n in range(20)]


@pytest.mark.parametrize("size", [-1, 0, 8, 90, 1 << 30])
def test_sizes_that_no_record_has(size: int) -> None:
    buffer = bytearray(record() * 3)
    second = len(buffer) // 3
    buffer[second : second + 4] = size.to_bytes(4, "big", signed=True)
    columns = scan(buffer, 0, len(buffer))
    assert len(columns) == 1
    assert columns.end == second
    # A size beyond the stretch may be a record of which more is to come.
    assert columns.stop is (Stop.END if size == 1 << 30 else Stop.INVALID)


@pytest.mark.parametrize("cut", range(0, 100, 3))
def test_a_record_that_the_end_cuts_off_is_not_valid(cut: int) -> None:
    whole = len(record())
    buffer = record() + record()[:cut]
    columns = Columns(buffer, np.array([0, whole], np.int64), len(buffer))
    assert columns.valid.tolist() == [True, cut >= whole]
    assert columns.size[0] == whole


def test_hosts_are_those_of_the_records() -> None:
    columns = scan(record() * 3, 0, 3 * len(record()))
    assert columns.born_host.tobytes() == BORN_HOST * 3
    assert columns.store_host.tobytes() == STORE_HOST * 3


names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "KEY", "KEYSX", "XKEYS", "UNIQ_KEYS", "TAG", "WAIT", "标", ""])
values = st.one_of(
    st.sampled_from(["", "A", "TagA", "a b", " a  b ", " ", "标签", "AaAa", "BBBB", "é", "😀 k", "T#A"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), max_size=12),
)
pairs = st.tuples(names, st.sampled_from(["\x01", "\x01", "\x01", ""]), values).map("".join)
property_texts = st.tuples(st.lists(pairs, max_size=6), st.sampled_from(["\x02", ""])).map(
    lambda parts: "\x02".join(parts[0]) + parts[1]
)
topics = st.sampled_from(["T", "TopicTest", "%RETRY%g", "t" * 60])
records = st.tuples(topics, property_texts.map(str.encode), st.sampled_from([0, 4, 8, 12]))


def key_hash(text: str) -> int:
    code = abs(java_hash(text))
    return 0 if code == 1 << 31 else code


def keys_of(topic: str, text: bytes, sys_flag: int) -> list[int]:
    """The index keys of one record, by the rules."""
    if sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
        return []
    found = parse(text)
    keys = [found["UNIQ_KEY"]] if "UNIQ_KEY" in found else []
    keys += [word for word in found.get("KEYS", "").split(" ") if word]
    keys += [f"T#{found['TAGS']}"] if "TAGS" in found else []
    return [key_hash(f"{topic}#{key}") for key in keys]


def derived(batch: list[tuple[str, bytes, int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """Tag codes, and (record, hash) of the keys, as the store derives them."""
    log = b"".join(
        encode_record(topic, b"x", text, 0, 0, 0, 0, flag, 0, BORN_HOST, 0, STORE_HOST) for topic, text, flag in batch
    )
    columns = scan(log, 0, len(log))
    assert len(columns) == len(batch)
    properties = Properties(columns)
    keys = properties.index_keys(*columns.topics())
    pairs_found = zip(keys.record.tolist(), keys.hash.tolist(), strict=True)
    return properties.tag_codes().tolist(), list(pairs_found)


@given(st.lists(records, min_size=1, max_size=12))
@example([("T", b"TAGS\x01A\x02TAGS\x01\x02", 0)])
@example([("T", b"KEYS\x01", 0), ("T", b"TAGS\x01A", 0)])
def test_they_follow_the_rules(batch: list[tuple[str, bytes, int]]) -> None:
    codes, keys = derived(batch)
    assert codes == [tag_code(parse(text).get("TAGS")) for _, text, _ in batch]
    assert keys == [(number, key) for number, parts in enumerate(batch) for key in keys_of(*parts)]


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5))
def test_properties_of_any_bytes_do_no_harm(texts: list[bytes]) -> None:
    codes, keys = derived([("T", text, 0) for text in texts])
    assert len(codes) == len(texts)
    assert all(key >= 0 for _, key in keys)


def test_a_batch_of_equal_shapes() -> None:
    texts = [b"UNIQ_KEY\x01%032d\x02TAGS\x01TagA\x02" % n for n in range(300)]
    codes, keys = derived([("T", text, 0) for text in texts])
    assert codes == [2598919] * 300
    assert [key for _, key in keys[::2]] == [key_hash(f"T#{n:032d}") for n in range(300)]
    assert {key for _, key in keys[1::2]} == {key_hash("T#T#TagA")}


@given(
    text=property_texts.map(str.encode).filter(len),
    changes=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 200), st.sampled_from(b"A \x01\x02U\xc3")), max_size=4
    ),
)
@example(b"TAGS\x01A\x02", [(1, 0, 0x53)])
@example(b"KEYS\x01A\x02KEYS\x01B\x02", [(1, 5, 0x20)])
def test_records_that_are_nearly_alike(text: bytes, changes: list[tuple[int, int, int]]) -> None:
    texts = [bytearray(text) for _ in range(8)]
    for number, at, byte in changes:
        texts[number][at % len(text)] = byte
    together = derived([("T", bytes(text), 0) for text in texts])
    alone = [derived([("T", bytes(text), 0)]) for text in texts]
    assert together[0] == [codes[0] for codes, _ in alone]
    assert together[1] == [(n, key) for n, (_, keys) in enumerate(alone) for _, key in keys]


levels = st.sampled_from(["1", "3", "18", "99", "0", "007", "-1", "x", "1x", "٣", "", "9" * 20, "9" * 5000, ":", "/9"])
delays = st.builds("{}{}".format, st.sampled_from(["DELAY\x01", "DELAYS\x01", "DELAY", "A\x01"]), levels)
delayed_texts = st.builds(
    lambda pairs, end: "\x02".join(pairs) + end, st.lists(delays, max_size=3), st.sampled_from(["\x02", ""])
)


@given(st.lists(delayed_texts.map(str.encode), min_size=1, max_size=6), st.booleans())
def test_delay_levels_are_those_that_are_numbers(texts: list[bytes], alike: bool) -> None:
    """Of which Python reads no more digits than there are in any sane one."""
    if alike:
        texts = [texts[0]] * len(texts)
    log = b"".join(record(properties=text) for text in texts)
    found = [parse(text).get("DELAY", "0") for text in texts]
    expected = [int(one) if one.isdecimal() and len(one) <= 1000 else 0 for one in found]
    got = Properties(scan(log, 0, len(log))).delay_levels()
    assert got.tolist() == [min(level, 2**31 - 1) for level in expected]


def test_known_values_of_the_original() -> None:
    codes, keys = derived([("T", "TAGS\x01标签\x02".encode(), 0), ("T", b"KEYS\x01k1 AaAa BBBB\x02", 0)])
    assert codes == [857175, 0]
    assert [key for number, key in keys if number] == [2539445, 1855763633, 1855763633]


def test_the_hash_that_has_no_absolute_value_is_0() -> None:
    """Java's Math.abs leaves the lowest number negative."""
    low = "polygenelubricants"  # hash -2**31
    assert java_hash(low) == -(1 << 31)
    # T# and a key of this hash: h(T#k) = h(T#) * 31^len + h(k), so search a key that ends there.
    prefix = java_hash("T#")
    wanted = (-(1 << 31) - prefix * pow(31, 9, 1 << 32)) % (1 << 32)
    key = _text_of_hash(wanted, 9)
    assert java_hash(f"T#{key}") == -(1 << 31)
    assert derived([("T", b"KEYS\x01" + key.encode(), 0)])[1] == [(0, 0)]


def _text_of_hash(code: int, length: int) -> str:
    """A text of printable ASCII with this hash modulo 2**32."""
    lowest = sum(33 * 31**place for place in range(length))
    rest = (code - lowest) % (1 << 32)
    digits = []
    for place in reversed(range(length)):
        digit = min(rest // 31**place, 93)
        rest -= digit * 31**place
        digits.append(chr(33 + digit))
    assert rest == 0
    return "".join(digits)


def test_all_is_forgotten_when_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "_KEPT_MAX", 3)
    asked: list[bytes] = []

    def length(topic: bytes) -> int:
        asked.append(topic)
        return len(topic)

    known = ByTopic(length)
    topics = [b"a", b"bb", b"ccc", b"dddd", b"eeeee"]
    for topic in topics:
        assert known[topic] == known[topic] == len(topic)
        assert len(known) <= 3
    assert asked == topics
    assert list(known) == [b"dddd", b"eeeee"]
    assert known[b"a"] == 1
    assert asked == [*topics, b"a"]
