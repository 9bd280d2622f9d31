"""What a client names by its place in the log is a message, and not bytes within another's body."""

from __future__ import annotations

from pathlib import Path

import pytest

from firearrow.wire.command import FieldValue
from tests.attacks.forging import message_id, place_of, sent_within
from tests.broker.serving import Caller, Serving, bodies, calling
from tests.broker.signing import Signer, protected, signing
from tests.broker.transacting import COMMIT, GIVEN_UP, HALF, PREPARED, ROLLBACK

HALF_OF_SECRET = "TRAN_MSG\x01true\x02PGROUP\x01p\x02REAL_TOPIC\x01Secret\x02REAL_QID\x010\x02"
HALF_OF_T = HALF_OF_SECRET.replace("Secret", "T")


def ending(place: int, queue_offset: object, outcome: int) -> dict[str, FieldValue]:
    return {
        "producerGroup": "p", "tranStateTableOffset": int(str(queue_offset)),
        "commitLogOffset": place, "commitOrRollback": outcome,
    }  # fmt: skip


@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("asks_more", [False, True], ids=["plain", "immune"])
def test_a_half_within_a_body_ends_no_transaction(tmp_path: Path, dispatched: bool, asks_more: bool) -> None:
    """The half of somebody else has the queue offset that the forged one claims."""
    immune = "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02" if asks_more else ""

    async def main(served: Serving, root: Signer) -> None:
        real = await root.sent(b"worth", "Secret", i="TRAN_MSG\x01true\x02PGROUP\x01p\x02", f=4)
        async with signing(served, await root.user("u")) as attacker:
            await root.allow("u", ("Topic:T", ["Pub"]))
            offset = int(real["queueOffset"])
            place = await sent_within(attacker, HALF, immune + HALF_OF_T, offset)
            if dispatched:
                await served.dispatched()
            for outcome in (ROLLBACK, COMMIT):
                answer = await attacker.call(37, ending(place, offset, outcome))
                assert answer.code == 16, "nobody knows which message it means"
                answer = await attacker.call(37, {**ending(place, offset, outcome), "topic": "T"})
                assert answer.code == 1
                assert "no half at the physical offset" in (answer.remark or "")
        assert bodies(served, "Secret") == []
        answer = await root.call(37, ending(place_of(real), offset, COMMIT))
        assert answer.code == 0
        assert bodies(served, "Secret") == [b"worth"]

    protected(tmp_path, main)


@pytest.mark.parametrize("binary", [False, True])
def test_it_ends_none_without_access_control_either(tmp_path: Path, binary: bool) -> None:
    async def main(served: Serving, caller: Caller) -> None:
        real = await caller.sent(b"worth", i="TRAN_MSG\x01true\x02PGROUP\x01p\x02", f=PREPARED)
        place = await sent_within(caller, HALF, HALF_OF_T, int(real["queueOffset"]))
        for at, code in ((place, 1), (place_of(real), 0)):
            answer = await caller.call(37, ending(at, real["queueOffset"], COMMIT))
            assert answer.code == code
        assert bodies(served)[-1] == b"worth"

    calling(tmp_path, main, binary=binary)


def test_a_record_within_a_body_shows_nothing_of_what_follows(tmp_path: Path) -> None:
    """It may claim the messages behind it as its own body."""

    async def main(served: Serving, root: Signer) -> None:
        async with signing(served, await root.user("u")) as attacker:
            await root.allow("u", ("Topic:T", ["All"]), ("Group:HG", ["Sub"]))
            place = await sent_within(attacker, "T", longer_by=400)
            await root.sent(b"secret" * 100, "Secret")
            await served.dispatched()
            end = served.broker.store.log_end_offset
            asked: list[tuple[int, dict[str, FieldValue]]] = [
                (33, {"offset": place, "topic": "T"}),
                (36, {"offset": place, "group": "HG", "delayLevel": 1, "originTopic": "T"}),
                (309, {"consumerGroup": "HG", "clientId": "c", "topic": "T",
                       "msgId": message_id(place)}),
            ]  # fmt: skip
            for code, fields in asked:
                answer = await attacker.call(code, fields)
                assert answer.code == 1, code
                assert "no message begins there" in (answer.remark or ""), code
            assert served.broker.store.log_end_offset == end
            assert (await attacker.call(33, {"offset": 0, "topic": "T"})).code == 0

    protected(tmp_path, main)


def test_who_has_a_half_checked_again_needs_the_right_on_its_topic(tmp_path: Path) -> None:
    """Whatever topic the request claims."""

    async def main(served: Serving, root: Signer) -> None:
        half = await root.sent(b"worth", "Secret", i="TRAN_MSG\x01true\x02PGROUP\x01p\x02", f=4)
        async with signing(served, await root.user("u")) as attacker:
            await root.allow("u", ("Topic:T", ["Update"]))
            end = served.broker.store.log_end_offset
            answer = await attacker.call(323, {"topic": "T", "msgId": half["msgId"]})
            assert (answer.code, served.broker.store.log_end_offset) == (16, end)
            await root.allow("u", ("Topic:Secret", ["Update"]))
            assert (await attacker.call(323, {"topic": "T", "msgId": half["msgId"]})).code == 0

    protected(tmp_path, main)


def test_a_half_within_a_body_is_not_checked_again(tmp_path: Path) -> None:
    """What was given up can be resumed (323): then a producer would be sent what never was one."""

    async def main(served: Serving, caller: Caller) -> None:
        place = await sent_within(caller, GIVEN_UP, HALF_OF_SECRET)
        fields: dict[str, FieldValue] = {"topic": GIVEN_UP, "msgId": message_id(place)}
        answer = await caller.call(323, fields)
        assert answer.code == 1
        assert "no message begins there" in (answer.remark or "")
        assert bodies(served, HALF) == []

    calling(tmp_path, main)
