"""Each attack with each code is refused, and then nothing has changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from firearrow.message.names import lite_queue
from firearrow.wire.codes import RequestCode
from firearrow.wire.command import Command
from firearrow.wire.requests import PermissionScope, Row
from firearrow.wire.signature import SIGNATURE, Credentials
from tests.attacks.codes import REACHES
from tests.attacks.forging import message_id, place_of, sent_within
from tests.broker.everycode import BODIES, ROWS, as_json, body_of, header_of, seen
from tests.broker.serving import Serving
from tests.broker.signing import Signer, protected, signing
from tests.broker.transacting import HALF

REFUSED = 16
REPLIES = "C_REPLY_TOPIC"
FOREIGN = {"T": "Secret", "g": "other"}
NAMES = re.compile("(?i).*topic|.*groups?|groupName|topicName|topicList|[abc]")
PLACES = re.compile("(?i)offset|msgId|extraInfo|handle")
BY_CODE = {row.code: row for row in ROWS}


def test_each_code_has_a_row() -> None:
    """And each field that may name a place, or has properties, is in it."""
    assert REACHES.keys() == BY_CODE.keys()
    for code, reach in REACHES.items():
        header = header_of(BY_CODE[code])
        places = {name for name in header if PLACES.search(name)}
        assert places == {*reach.numbers, *filter(None, [reach.place])}, code.name
        texts = {name for name in header if name in ("i", "properties")}
        assert texts == set(filter(None, [reach.text])), code.name


class Scene(NamedTuple):
    """A broker with a message in T and one in Secret, and a user that may do everything with topic
    T and group g, and reply."""

    served: Serving
    root: Signer
    user: Credentials
    foreign_place: int

    async def asked(self, row: Row, header: Header, body: bytes) -> Command[Any]:
        """The answer to the user's request."""
        async with signing(self.served, self.user) as signer:
            return await signer.call(row.code, header, body)


# --- attacks with a code: the answers, all of which are to be refusals ---

Header = dict[str, str]
Answers = list[Command[Any]]
Attack = Callable[[Scene, Row], Coroutine[Any, Any, Answers]]


async def unsigned(scene: Scene, row: Row) -> Answers:
    """Nobody has signed it."""
    async with signing(scene.served, None) as nobody:
        return [await nobody.call(row.code, header_of(row), body_of(row))]


async def wrong_signature(scene: Scene, row: Row) -> Answers:
    """It is signed with another key than that of its user."""
    async with signing(scene.served, Credentials("root", "guessed")) as guesser:
        return [await guesser.call(row.code, header_of(row), body_of(row))]


async def cut(scene: Scene, row: Row) -> Answers:
    """The last byte is missing: of the body, a field, the signature."""
    root, header, body = scene.root, header_of(row), body_of(row)
    commands = []
    for name in (*header, SIGNATURE):
        command = root.signed(row.code, header, body)
        command.ext[name] = command.ext[name][:-1]
        commands.append(command)
    if body:
        command = root.signed(row.code, header, body)
        command.body = body[:-1]
        commands.append(command)
    root.talker.ask(*commands)
    return [await root.talker.answer() for _ in commands]


async def foreign_user(scene: Scene, row: Row) -> Answers:
    """A user names a topic or a group of others, if only at one place."""
    if not row.asks:
        return []
    if any(ask.resource is PermissionScope.CLUSTER for ask in row.asks):
        return [await scene.asked(row, header_of(row), body_of(row))]
    place = scene.foreign_place
    return [await scene.asked(row, *it) for it in naming_others(row, place)]


def naming_others(row: Row, foreign_place: int) -> Iterator[tuple[Header, bytes]]:
    """The request of a code with one name of another topic or group."""
    header, reach = header_of(row), REACHES[row.code]
    for name in header:
        if NAMES.fullmatch(name) and name not in reach.claims:
            yield {**header, name: FOREIGN.get(header[name], "Secret")}, body_of(row)
    if reach.place is not None:
        yield {**header, reach.place: named(reach.place, foreign_place)}, body_of(row)
    for body in variants(BODIES.get(row.code)):
        yield header, as_json(body)


def named(field: str, place: int) -> str:
    """A place in the log as a field has it."""
    return message_id(place) if field == "msgId" else str(place)


def variants(value: Any) -> Iterator[Any]:
    """A body, each time with another of its names changed."""
    if isinstance(value, str) and value in FOREIGN:
        yield FOREIGN[value]
    elif isinstance(value, dict):
        for name, item in value.items():
            for changed in variants(item):
                yield {**value, name: changed}
    elif isinstance(value, list):
        for number, item in enumerate(value):
            for changed in variants(item):
                yield [*value[:number], changed, *value[number + 1 :]]


async def forged_place(scene: Scene, row: Row) -> Answers:
    """The place is within a body of the user's: that of a half, or of a message that claims what
    follows as its body."""
    field = REACHES[row.code].place
    if field is None:
        return []
    half = "TRAN_MSG\x01true\x02PGROUP\x01x\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    header = header_of(row) | {"commitOrRollback": "12"}
    answers = []
    async with signing(scene.served, scene.user) as user:
        places = [await sent_within(user, HALF, half), await sent_within(user, "T", longer_by=90)]
        await scene.root.sent(b"secret" * 30, "Secret")
        for place in places:
            before = seen(scene.served)
            value = named(field, place)
            answer = await user.call(row.code, {**header, field: value}, body_of(row))
            assert seen(scene.served) == before, row.code.name
            answers.append(answer)
    return answers


async def acting_property(scene: Scene, row: Row) -> Answers:
    """A message is to reach more than its topic."""
    field = REACHES[row.code].text
    if field is None:
        return []
    texts = ["INNER_MULTI_DISPATCH\x01%LMQ%a\x02", f"INNER_MULTI_DISPATCH\x01{lite_queue('Secret', 'l')}\x02"]
    if row.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        texts += ["TIMER_DELAY_SEC\x019\x02TIMER_DEL_UNIQKEY\x01U1\x02", "REPLY_TO_CLIENT\x01asker\x02"]
    header = header_of(row)
    return [await scene.asked(row, {**header, field: text}, body_of(row)) for text in texts]


ATTACKS: dict[str, Attack] = {
    "unsigned": unsigned,
    "wrong signature": wrong_signature,
    "cut": cut,
    "foreign user": foreign_user,
    "forged place": forged_place,
    "acting property": acting_property,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_code_refuses(tmp_path: Path, attack: str) -> None:
    async def main(served: Serving, root: Signer) -> None:
        beat = {"clientID": "asker", "producerDataSet": [{"groupName": "pg"}]}
        assert (await root.call(34, {}, as_json(beat))).code == 0
        await root.sent()
        foreign = place_of(await root.sent(topic="Secret"))
        scene = Scene(served, root, await root.user("u"), foreign)
        own = ("Topic:T", ["All"]), ("Group:g", ["All"]), (f"Topic:{REPLIES}", ["Pub"])
        await root.allow("u", *own)
        tried = 0
        for row in ROWS:
            before = seen(served)
            answers = await ATTACKS[attack](scene, row)
            tried += len(answers)
            if attack == "forged place":  # of which the attacker has sent messages
                assert 0 not in {answer.code for answer in answers}, row.code.name
                assert not any(b"secret" in answer.body for answer in answers), row.code.name
                continue
            assert {answer.code for answer in answers} <= {REFUSED}, (row.code.name, answers)
            assert seen(served) == before, row.code.name
        assert tried >= LEAST[attack]

    protected(tmp_path, main, store={"enable_lmq": True, "enable_multi_dispatch": True})


LEAST = {
    "unsigned": len(ROWS), "wrong signature": len(ROWS), "cut": 3 * len(ROWS),
    "foreign user": len(ROWS), "forged place": 10, "acting property": 10,
}  # fmt: skip
"""How many requests there are at least: an attack that tries nothing shows nothing."""
