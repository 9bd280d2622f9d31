"""The records of a trace, byte for byte as Java writes them."""

from firearrow.client import tracerecords
from firearrow.client.tracerecords import Kind, Outcome


def row(text: str) -> list[str]:
    assert text.endswith("\x02")
    return text[:-1].split("\x01")


def words(text: str) -> list[str]:
    return text.split()


def test_sent() -> None:
    record = tracerecords.pub(
        time_ms=1, region="R", group="g", topic="T", message_id="U1", tags=None, keys="k1 k2",
        store_host="h:1", body_bytes=4, cost_ms=5, kind=Kind.ORDERED, offset_message_id="O1",
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
        keys="k", outcome=Outcome.FAILED,
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
