"""Records of a trace, byte for byte as Java writes them."""

from firearrow.client.tracing import records as tracerecords
from firearrow.client.tracing.records import ConsumeReturnType, SendKind, TraceStep, steps_in
from firearrow.message.hosts import Host
from firearrow.message.model import MessageView

HOST = Host("10.0.0.1", 1)
PUB = [
    "Pub",
    "5",
    "r",
    "producers",
    "T",
    "id",
    "tag",
    "key",
    "10.0.0.2:1",
    "3",
    "7",
    "0",
    "offset-id",
    "true",
    "10.0.0.1",
]
SUB = ["SubAfter", "request", "id", "4", "true", "key", "0", "9", "consumers"]


def row(text: str) -> list[str]:
    assert text.endswith("\x02")
    return text[:-1].split("\x01")


def words(text: str) -> list[str]:
    return text.split()


def test_sent() -> None:
    record = tracerecords.pub(
        time_ms=1, region="R", group="g", topic="T", message_id="U1", tags=None, keys="k1 k2",
        store_host="h:1", body_bytes=4, cost_ms=5, kind=SendKind.ORDERED, offset_message_id="O1",
    )  # fmt: skip
    expected = words("Pub 1 R g T U1 null k1_k2 h:1 4 5 4 O1 true")
    assert row(record.text) == [it.replace("_", " ") for it in expected]
    assert (record.topic, record.keys) == ("T", ("U1", "k1", "k2"))


def test_consumed() -> None:
    before = tracerecords.sub_before(
        time_ms=1, region="R", group="g", request_id="Q", topic="T", message_id="U1", retry_times=2,
        keys=None,
    )  # fmt: skip
    after = tracerecords.sub_after(
        time_ms=9, group="g", request_id="Q", topic="T", message_id="U1", cost_ms=5, success=False,
        keys="k", outcome=ConsumeReturnType.FAILED,
    )  # fmt: skip
    assert row(before.text) == words("SubBefore 1 R g Q U1 2 null")
    assert row(after.text) == words("SubAfter Q U1 5 false k 4 9 g")


def test_decided_and_recalled() -> None:
    decided = tracerecords.end_transaction(
        time_ms=1, region="R", group="g", topic="T", message_id="U1", tags="t", keys=None,
        store_host="h:1", transaction_id="U1", state="COMMIT_MESSAGE", from_check=True,
    )  # fmt: skip
    assert row(decided.text) == (words("EndTransaction 1 R g T U1 t null h:1 2 U1 COMMIT_MESSAGE true"))
    recalled = tracerecords.recall(time_ms=1, region="R", group="g", topic="T", message_id="U1", success=True)
    assert row(recalled.text) == words("Recall 1 R g T U1 true")


def trace(*records: list[str]) -> MessageView:
    body = "".join("\x01".join(fields) + "\x02" for fields in records).encode()
    return MessageView("T", 0, 0, 0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0, body, {})


def test_who_sent_and_consumed_a_message() -> None:
    assert steps_in(trace(PUB, SUB), "id") == [
        TraceStep("Pub", "producers", "10.0.0.1", 5, 7, True),
        TraceStep("Sub", "consumers", "10.0.0.1", 9, 4, True),
    ]


def test_other_messages_and_other_records_are_left_out() -> None:
    before = ["SubBefore", "1", "r", "g", "request", "id", "0", "key"]
    assert steps_in(trace(PUB, before, ["", ""]), "another") == []


def test_older_clients_leave_the_last_fields_out() -> None:
    assert steps_in(trace([*PUB[:12], "false"]), "id")[0].succeeded is False
    assert steps_in(trace(PUB[:12]), "id")[0].succeeded is True
    assert steps_in(trace(SUB[:7]), "id") == [TraceStep("Sub", None, "10.0.0.1", 0, 4, True)]
