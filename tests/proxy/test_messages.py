"""Messages go to RocketMQ's own client and come back, with classes of both in one process."""

import subprocess
import sys

import pytest

from firearrow.proxy import messages as m


def test_a_message_comes_back() -> None:
    settings = m.Settings(
        client_type=m.ClientType.PUSH_CONSUMER,
        request_timeout=m.Duration(seconds=3),
        subscription=m.Subscription(group=m.Resource(name="g"), fifo=True),
        client_properties={"region": "north"},
    )
    again = m.Settings.FromString(settings.SerializeToString())
    assert again == settings
    assert again.client_type == m.ClientType.PUSH_CONSUMER
    assert again.WhichOneof("pub_sub") == "subscription"
    assert again.request_timeout.ToMilliseconds() == 3000
    assert not again.HasField("access_point")


def test_the_official_client_reads_the_same() -> None:
    from rocketmq.grpc_protocol import definition_pb2, service_pb2

    at = m.Timestamp(seconds=7, nanos=8)
    properties = m.SystemProperties(message_id="01", keys=["k"], born_timestamp=at, queue_offset=0)
    message = m.Message(topic=m.Resource(name="t"), body=b"\0", system_properties=properties)
    message.user_properties["a"] = "ä"
    sent = m.ReceiveMessageResponse(message=message).SerializeToString(deterministic=True)
    theirs = service_pb2.ReceiveMessageResponse.FromString(sent)
    assert theirs.WhichOneof("content") == "message"
    assert theirs.message.system_properties.born_timestamp.nanos == 8
    assert theirs.message.system_properties.HasField("queue_offset")
    assert dict(theirs.message.user_properties) == {"a": "ä"}
    assert theirs.SerializeToString(deterministic=True) == sent
    assert definition_pb2.Code.Value("FORBIDDEN") == m.Code.FORBIDDEN
    assert definition_pb2.Resource is not m.Resource


def test_an_unknown_number_of_an_enum_is_no_error() -> None:
    assert m.HeartbeatRequest.FromString(b"\x10\x63").client_type == 99
    with pytest.raises(ValueError, match="99 is not a valid ClientType"):
        m.ClientType(99)


def test_enums_in_messages_are_enums_too() -> None:
    option = m.OffsetOption(policy=m.OffsetOption.Policy.MAX)
    assert m.OffsetOption.Policy(option.policy).name == "MAX"


def test_an_import_makes_no_class_and_leaves_the_default_pool_alone() -> None:
    program = """if True:
        from firearrow.proxy import descriptors, messages
        assert not descriptors.pool.cache_info().currsize
        messages.Status
        from google.protobuf.descriptor_pool import Default
        Default().FindMessageTypeByName("google.protobuf.Timestamp")
        Default().FindMessageTypeByName("apache.rocketmq.v2.Status")
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "KeyError" in done.stderr.splitlines()[-1]
    assert "apache.rocketmq.v2.Status" in done.stderr.splitlines()[-1]


def test_without_protobuf_the_extra_is_named() -> None:
    program = "import sys; sys.modules['google.protobuf'] = None; import firearrow.proxy.messages"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("gRPC needs protobuf: pip install 'firearrow[grpc]'")
