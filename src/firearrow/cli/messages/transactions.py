"""`firearrow transaction`: open transactions, parked ones, and new checks of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

from firearrow.cli.cluster.masters import PREVIEW, Apply, masters_in
from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.commands import CommandGroup
from firearrow.cli.failures import FAILED, NothingFound, sentence
from firearrow.cli.messages.bodyviews import beginning, body_of
from firearrow.cli.messages.reading import newest
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import Parameter, WrongOptions, switch, valued
from firearrow.cli.parameters import count as count_of
from firearrow.client.admin import Admin
from firearrow.client.admin.calls import concurrently
from firearrow.client.admin.cluster import RegisteredBroker
from firearrow.clock import SystemClock
from firearrow.errors import FirearrowError
from firearrow.message import names
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView

COLUMNS: Final = (
    "sentAt", "ageSeconds", "topic", "producerGroup", "checks", "state", "messageId", "offsetMessageId", "broker",
    "tag", "keys", "bodyBytes", "body",
)  # fmt: skip
RESUMED: Final = ("topic", "producerGroup", "messageId", "offsetMessageId", "was", "state")
OPEN, PARKED = "open", "parked"
BODY_CHARACTERS: Final = 80
DECIDED: Final = "d"
"""Tag of a record that names decided halves."""
_DIGITS_MAX: Final = 18

app: Final = CommandGroup()


class Transaction(NamedTuple):
    """A transaction that nobody has decided, by the newest copy of its half, without its body."""

    sent_ms: int
    topic: str
    row: list[Cell]


@app.command("list")
async def list_transactions(
    topic: Annotated[str | None, Parameter("transactions of this topic (default: of all)", names_of="topics")] = None,
    /,
    *,
    parked: Annotated[bool, switch("only those that the broker no longer checks")] = False,
    limit: Annotated[int, valued("N", "largest number, the oldest; 0 for all (default: 100)", count_of)] = 100,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """List transactions that nobody has decided, the oldest first."""
    notes: list[str] = []
    now_ms = SystemClock().now_ms()

    async def one(server: RegisteredBroker) -> list[Transaction]:
        try:
            halves = [] if parked else await _open(admin, server, now_ms, notes)
            return [*halves, *await _parked(admin, server, now_ms, notes)]
        except (OSError, FirearrowError) as error:
            notes.append(f"Broker {server.broker} does not tell all: {sentence(error)}.")
            return []

    async with cluster.admin() as admin:
        parts = await concurrently(masters_in(await admin.cluster()), one)
    found = sorted(it for part in parts for it in part if topic in (None, it.topic))
    shown = found[:limit] if limit else found
    if len(shown) < len(found):
        notes.insert(0, f"{len(found):,} transactions are not decided.")
    rows = [it.row for it in shown]
    output.show(Table("Transactions", COLUMNS, rows, " ".join(notes), more=len(shown) < len(found)))


async def _open(admin: Admin, server: RegisteredBroker, now_ms: int, notes: list[str]) -> list[Transaction]:
    """Give the halves behind the broker's own offset that no record of decisions names."""
    done = (await admin.offsets.progress(server.address, names.TRANS_GROUP)).offset_table
    behind = {queue: offsets.consumer_offset for queue, offsets in done.items()}
    decided: set[int] = set()
    async for op in newest(admin, server, names.TRANS_OP_HALF_TOPIC, notes, behind=behind):
        if op.tags == DECIDED:
            decided |= _numbers(op.body.decode("latin-1").split(","))
    halves: dict[str, tuple[int, Transaction]] = {}
    async for half in newest(admin, server, names.TRANS_HALF_TOPIC, notes, behind=behind):
        root = half.properties.get(keys_of.TRANSACTION_PREPARED_QUEUE_OFFSET, "")
        places = {half.queue_offset, *_numbers([root])}
        key = half.unique_key or half.offset_message_id
        if places & decided:
            halves.pop(key, None)
        else:
            halves[key] = half.queue_offset, _transaction(half, server.broker, now_ms, OPEN)
    return [found for _, found in halves.values()]


async def _parked(admin: Admin, server: RegisteredBroker, now_ms: int, notes: list[str]) -> list[Transaction]:
    return [
        _transaction(it, server.broker, now_ms, PARKED)
        async for it in newest(admin, server, names.TRANS_CHECK_MAX_TIME_TOPIC, notes)
    ]


def _numbers(texts: Iterable[str]) -> set[int]:
    return {int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX}


def _transaction(message: MessageView, broker: str, now_ms: int, state: str) -> Transaction:
    found, (body, _) = message.properties, body_of(message)
    checks = _numbers([found.get(keys_of.TRANSACTION_CHECK_TIMES, "")])
    row: list[Cell] = [
        as_moment(message.born_timestamp_ms),
        max(now_ms - message.born_timestamp_ms, 0) / 1000,
        found.get(keys_of.REAL_TOPIC, ""),
        found.get(keys_of.PRODUCER_GROUP),
        max(checks, default=0),
        state,
        message.unique_key or message.offset_message_id,
        message.offset_message_id,
        broker,
        message.tags,
        " ".join(message.keys) or None,
        len(body),
        beginning(body, BODY_CHARACTERS),
    ]
    return Transaction(message.born_timestamp_ms, found.get(keys_of.REAL_TOPIC, ""), row)


@app.command("resume")
async def resume(
    ids: Annotated[
        tuple[str, ...], valued("ID", "ids by offset of transactions, from `firearrow transaction list`")
    ] = (),
    /,
    *,
    apply: Apply = False,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> int:
    """Check transactions again, open ones and parked ones."""
    if not ids:
        raise WrongOptions("give the ID of at least one transaction")
    rows: list[list[Cell]] = []
    notes: list[str] = []
    async with cluster.admin() as admin:
        found = [await admin.messages.view(message_id) for message_id in ids]
        for message in found:
            if message.topic not in (names.TRANS_HALF_TOPIC, names.TRANS_CHECK_MAX_TIME_TOPIC):
                raise NothingFound(
                    f"message {message.offset_message_id} of topic {message.topic!r} is no open transaction"
                )
        for message in found:
            state = "would be checked"
            if apply:
                state = await _checked(admin, message, notes)
            rows.append(_resumed(message, state))
    output.show(Table("Transactions", RESUMED, rows, PREVIEW if not apply else "; ".join(dict.fromkeys(notes))))
    return FAILED if notes else 0


async def _checked(admin: Admin, message: MessageView, notes: list[str]) -> str:
    try:
        await admin.messages.check_again(str(message.store_host), message.topic, message.offset_message_id)
    except (OSError, FirearrowError) as error:
        notes.append(sentence(error))
        return "failed"
    return "checked again"


def _resumed(message: MessageView, state: str) -> list[Cell]:
    found = message.properties
    was = PARKED if message.topic == names.TRANS_CHECK_MAX_TIME_TOPIC else OPEN
    return [
        found.get(keys_of.REAL_TOPIC),
        found.get(keys_of.PRODUCER_GROUP),
        message.unique_key,
        message.offset_message_id,
        was,
        state,
    ]
