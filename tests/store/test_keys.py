"""Tag codes and index keys by columns, against the rules applied to one record at a time."""

from hypothesis import example, given
from hypothesis import strategies as st

from firearrow.message.names import java_hash, tag_code
from firearrow.message.properties import parse
from firearrow.message.record import encode_record
from firearrow.message.sysflag import TRANSACTION_ROLLBACK
from firearrow.store.keys import Properties
from firearrow.store.scan import scan
from tests.store.stores import BORN_HOST, STORE_HOST

names = st.sampled_from(
    ["TAGS", "KEYS", "UNIQ_KEY", "KEY", "KEYSX", "XKEYS", "UNIQ_KEYS", "TAG", "WAIT", "标", ""]
)
values = st.one_of(
    st.sampled_from(
        ["", "A", "TagA", "a b", " a  b ", " ", "标签", "AaAa", "BBBB", "é", "😀 k", "T#A"]
    ),
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


def derived(
    batch: list[tuple[str, bytes, int]],
) -> tuple[list[int], list[tuple[int, int]]]:
    """Tag codes, and (record, hash) of the keys, as the store derives them."""
    log = b"".join(
        encode_record(topic, b"x", text, 0, 0, 0, 0, flag, 0, BORN_HOST, 0, STORE_HOST)
        for topic, text, flag in batch
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
        st.tuples(st.integers(0, 7), st.integers(0, 200), st.sampled_from(b"A \x01\x02U\xc3")),
        max_size=4,
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


def test_known_values_of_the_original() -> None:
    codes, keys = derived(
        [("T", "TAGS\x01标签\x02".encode(), 0), ("T", b"KEYS\x01k1 AaAa BBBB\x02", 0)]
    )
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
