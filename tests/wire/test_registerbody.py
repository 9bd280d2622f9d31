"""Registrations of brokers, as the Java encoder of 5.5.0 writes them."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firearrow.errors import MessageError
from firearrow.wire import registerbody
from firearrow.wire.bodies import DataVersion, TopicConfig, TopicConfigTable, TopicQueueMappingInfo
from firearrow.wire.registerbody import RegisterBody, body_crc32, line_of, topic_in
from tests.cputime import cpu_seconds

# Both forms as RegisterBrokerBody#encode of 5.5.0 made them of the same values.
JAVA_PLAIN = (
    b'{"filterServerList":["f"],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,'
    b'"stateVersion":7,"timestamp":1795220337526},"mappingDataVersion":{"counter":0,'
    b'"stateVersion":0,"timestamp":1795220337526},"topicConfigTable":{"T":{"attributes":'
    b'{"message.type":"FIFO"},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":'
    b'"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":5}},'
    b'"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{"T":{"bname":"b",'
    b'"currIdMap":{0:1},"dirty":false,"epoch":9,"scope":"__global__","topic":"T",'
    b'"totalQueues":3}}}}'
)
JAVA_COMPRESSED = bytes.fromhex(
    "78da2d8e4f8bc23010c5b387fd1ee11d252cda5abbe6e641a5b07f58b6781109691cb5d03625490f52fadd37ca1e1e"
    "0cefcd6fe631c6de47183b74811ce442c0071de840ced7b683cc0542dd5234db3ec6f93a4b92799ae659b29a18632f"
    "51b3922f79c657fcb7f8da7f6c55b9d9f31191f1fa4a6fe1de132476c5ee1b0fe2f5880b4effe86d44d5e9f6b15041"
    "c00cce15e74f1d3f8d73b99804ceb50b77c88b6e3c09506fcd0d721d4b1afb3cabd4b5b1956e948a78b07d6da2593e"
    "e7a09b9f8106f290e9f4079bb541ad"
)

names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)
counts = st.integers(0, 2**31 - 1)
attributes = st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"])), max_size=3)
topics = st.builds(TopicConfig, names, counts, counts, st.integers(0, 15), attributes=attributes)
mappings = st.builds(
    TopicQueueMappingInfo,
    topic=names,
    total_queues=counts,
    bname=names,
    curr_id_map=st.dictionaries(counts, counts, max_size=3),
)
register_bodies = st.builds(
    lambda version, topics, mappings, filters: RegisterBody(
        TopicConfigTable(
            version,
            {topic.topic_name or "": topic for topic in topics},
            topic_queue_mapping_info_map={mapping.topic or "": mapping for mapping in mappings},
        ),
        filters,
    ),
    st.builds(DataVersion, counts, counts, counts),
    st.lists(topics, max_size=4),
    st.lists(mappings, max_size=3),
    st.lists(names, max_size=2),
)


def test_the_plain_register_body_is_javas() -> None:
    body = RegisterBody.decode(JAVA_PLAIN)
    topic = TopicConfig("T", 4, 5, 6, attributes={"message.type": "FIFO"})
    assert body.topic_config_serialize_wrapper.topic_config_table == {"T": topic}
    assert body.encode() == JAVA_PLAIN


def test_the_compressed_register_body_is_javas() -> None:
    body = RegisterBody.decode(JAVA_COMPRESSED, compressed=True)
    plain = RegisterBody.decode(JAVA_PLAIN)
    ours, theirs = body.topic_config_serialize_wrapper, plain.topic_config_serialize_wrapper
    assert ours.topic_config_table == theirs.topic_config_table
    assert ours.data_version == theirs.data_version
    assert ours.topic_queue_mapping_info_map == theirs.topic_queue_mapping_info_map
    assert body.filter_server_list == ["f"]
    assert zlib.decompress(body.encode(compressed=True)) == zlib.decompress(JAVA_COMPRESSED)


@given(register_bodies, st.booleans())
def test_register_bodies_both_ways(body: RegisterBody, compressed: bool) -> None:
    assert RegisterBody.decode(body.encode(compressed), compressed) == body


def test_a_compressed_body_of_a_release_before_5() -> None:
    parts = [b'{"counter":1}', None, b"T 4 4 6 SINGLE_TAG", b"[]"]
    plain = b"".join((1).to_bytes(4, "big") if part is None else len(part).to_bytes(4, "big") + part for part in parts)
    body = RegisterBody.decode(zlib.compress(plain), compressed=True)
    table = body.topic_config_serialize_wrapper
    assert table.topic_config_table == {"T": TopicConfig("T", 4, 4, 6)}
    assert table.topic_queue_mapping_info_map == {}


@given(st.binary())
def test_a_broken_compressed_body_raises_nothing_else(data: bytes) -> None:
    for body in (data, zlib.compress(data), zlib.compress(data)[:-2]):
        with pytest.raises(MessageError):
            RegisterBody.decode(body, compressed=True)


@pytest.mark.parametrize(
    ("plain", "reason"),
    [
        (b"\xff\xff\xff\xff", "can't be a length"),
        (b"\x00\x00\x00\x09{}", "ends too early"),
        (b"\x00\x00\x00\x02{}\x7f\xff\xff\xff", "has 2147483647 topics, the limit is 200000"),
        (b"\x00\x00\x00\x02{}\x00\x00\x00\x01\x00\x00\x00\x01T", "not a topic config: 'T'"),
        (b"\x00\x00\x00\x02{}\x00\x00\x00\x01\x00\x00\x00\x01\xff", "can't be read"),
    ],
)
def test_what_is_wrong_with_a_compressed_body_is_said(plain: bytes, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        RegisterBody.decode(zlib.compress(plain), compressed=True)


def test_a_body_that_unpacks_to_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registerbody, "REGISTER_BODY_BYTES_MAX", 1000)
    with pytest.raises(MessageError, match="more than 1000 bytes"):
        RegisterBody.decode(zlib.compress(bytes(100_000)), compressed=True)


def test_the_topic_line() -> None:
    line = line_of(TopicConfig("T", 4, 5, 6))
    assert line == "T 4 5 6 SINGLE_TAG {}"
    assert line.encode().hex() in (registerbody.__doc__ or "")
    assert topic_in("T 4 5 6 MULTI_TAG") == TopicConfig("T", 4, 5, 6, "MULTI_TAG")


@given(topics)
def test_topic_lines_both_ways(topic: TopicConfig) -> None:
    assert topic_in(line_of(topic)) == topic


def test_the_crc_has_no_sign_bit() -> None:
    assert body_crc32(b"a") == zlib.crc32(b"a") & 0x7FFFFFFF != zlib.crc32(b"a")


def test_a_plain_body_has_no_more_topics_than_a_compressed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    body = RegisterBody(TopicConfigTable(DataVersion(), {f"T{n}": TopicConfig(f"T{n}") for n in range(3)}))
    for compressed in (False, True):
        data = body.encode(compressed)
        monkeypatch.setattr(registerbody, "REGISTER_TOPICS_MAX", 3)
        assert len(RegisterBody.decode(data, compressed).topic_config_serialize_wrapper.topic_config_table) == 3
        monkeypatch.setattr(registerbody, "REGISTER_TOPICS_MAX", 2)
        with pytest.raises(MessageError, match="the register body has 3 topics, the limit is 2"):
            RegisterBody.decode(data, compressed)


def test_a_broker_with_many_topics_and_a_static_one_can_register() -> None:
    """Its mapping has integer keys without quotes: nothing of the rest needs the slow reader."""
    table = TopicConfigTable(
        DataVersion(),
        {f"T{n}": TopicConfig(f"T{n}") for n in range(10_000)},
        topic_queue_mapping_info_map={"S": TopicQueueMappingInfo("S", curr_id_map={0: 0, 1: 7})},
    )
    data = RegisterBody(table).encode()
    assert b'"currIdMap":{0:0,1:7}' in data
    assert len(data) > 1024 * 1024
    assert RegisterBody.decode(data).topic_config_serialize_wrapper == table
    # The parser alone takes over a second.
    assert cpu_seconds(lambda: RegisterBody.decode(data), 0.5) < 0.5


@pytest.mark.parametrize("compressed", [False, True])
def test_filter_servers_are_limited(compressed: bool) -> None:
    """They would be in the answer to each client that asks where a topic is."""
    most = registerbody.FILTER_SERVERS_MAX
    whole = RegisterBody(filter_server_list=["f"] * most)
    assert RegisterBody.decode(whole.encode(compressed), compressed).filter_server_list == ["f"] * most
    with pytest.raises(MessageError, match=f"length <= {most}"):
        RegisterBody.decode(RegisterBody(filter_server_list=["f"] * (most + 1)).encode(compressed), compressed)
