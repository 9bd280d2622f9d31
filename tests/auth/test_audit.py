"""The audit log: each refusal that is new, and all that was left out, by its number."""

import pytest

from firearrow.auth.audit import LINES_MAX, REPEAT_SECONDS, Audit


class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_refusal_that_repeats_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Seconds()
    audit = Audit(clock)
    for _ in range(5):
        audit.refused("u", "10.0.0.1", "SEND_MESSAGE", 10, "why")
    audit.refused("v", "10.0.0.1", "SEND_MESSAGE", 10, "why")
    clock.now = REPEAT_SECONDS
    audit.refused("u", "10.0.0.1", "SEND_MESSAGE", 10, "why")
    lines = [vars(record) for record in caplog.records]
    assert [(line["user"], line["unlogged"]) for line in lines] == [("u", 0), ("v", 0), ("u", 4)]
    assert lines[0]["ip"] == "10.0.0.1"
    assert lines[0]["reason"] == "why"


def test_who_invents_users_gets_no_memory_and_no_disk(caplog: pytest.LogCaptureFixture) -> None:
    clock = Seconds()
    audit = Audit(clock)
    for number in range(5000):
        audit.refused(f"u{number}" * 1000, "10.0.0.1", "SEND_MESSAGE", 10, "why" * 1000)
    assert len(caplog.records) == len(audit._refused) == LINES_MAX
    assert all(len(name) <= 200 for name, *_ in audit._refused)
    clock.now = REPEAT_SECONDS
    audit.refused("u", "10.0.0.1", "SEND_MESSAGE", 10, "why")
    told, last = caplog.records[LINES_MAX:]
    assert (told.msg, vars(told)["unlogged"]) == ("many requests are refused", 5000 - LINES_MAX)
    assert vars(last)["user"] == "u"
