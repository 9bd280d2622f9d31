"""Messages as upstream's tools print them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from firearrow.cli.mqadmin.invocation import Invocation
from firearrow.cli.mqadmin.javatext import moment, shown, text_order
from firearrow.client.admin.cluster import Track
from firearrow.errors import ConfigError, FirearrowError
from firearrow.files import for_the_user_alone, make_own_directory, name_of_file
from firearrow.message import properties as keys_of
from firearrow.message.model import MessageView

BODIES: Final = Path("/tmp/rocketmq/msgbodys")
PROPERTIES_TABLE: Final = 128  # buckets of the map of a message's properties


def message_id(message: MessageView) -> str:
    """The id that applications see: their client's, else that of its place."""
    return message.unique_key or message.offset_message_id


def body_text(message: MessageView, charset: str) -> str:
    """A body as text; what is not of the character set is replaced."""
    try:
        return message.body_decompressed().decode(charset, "replace")
    except LookupError:
        raise ConfigError(f"{charset!r} is no character set") from None


def properties_text(message: MessageView, more: Mapping[str, str] | None = None) -> str:
    """The properties of a message, with what a client adds to them when it has pulled it."""
    found = {**message.properties, **(more or {})}
    return shown({name: found[name] for name in text_order(found, PROPERTIES_TABLE)})


def pulled_text(message: MessageView, broker: str, more: Mapping[str, str]) -> str:
    """A message that was pulled, with all its fields; its body as numbers."""
    numbers = ", ".join(str(byte - 256 * (byte > 127)) for byte in message.body_decompressed())
    transaction = f"'{message.unique_key}'" if message.transaction_type == 4 else "'null'"
    inner = (
        f"Message{{topic='{message.topic}', flag={message.flag}, "
        f"properties={properties_text(message, more)}, body=[{numbers}], "
        f"transactionId={transaction}}}"
    )
    return (
        f"MessageExt [brokerName={broker}, queueId={message.queue_id}, "
        f"storeSize={message.store_size}, queueOffset={message.queue_offset}, "
        f"sysFlag={message.sys_flag}, bornTimestamp={message.born_timestamp_ms}, "
        f"bornHost=/{message.born_host}, storeTimestamp={message.store_timestamp_ms}, "
        f"storeHost=/{message.store_host}, msgId={message.offset_message_id}, "
        f"commitLogOffset={message.physical_offset}, bodyCRC={message.body_crc}, "
        f"reconsumeTimes={message.reconsume_times}, "
        f"preparedTransactionOffset={message.prepared_transaction_offset}, toString()={inner}]"
    )


def write_body(message: MessageView, suffix: str = "") -> Path:
    """Write a body into the directory of upstream's tools, and give the file.

    The producer chooses the id, so it is made a name first.
    """
    make_own_directory(BODIES)
    path = BODIES / f"{name_of_file(message_id(message))}{suffix}"
    with open(path, "wb", opener=for_the_user_alone) as file:
        file.write(message.body_decompressed())
    return path


def fields_text(message: MessageView, path: Path, more: Mapping[str, str] | None = None) -> str:
    """The fields of a message, one a line."""
    keys = message.properties.get(keys_of.KEYS)
    fields = (
        ("Topic:", message.topic),
        ("Tags:", f"[{shown(message.tags)}]"),
        ("Keys:", f"[{shown(keys)}]"),
        ("Queue ID:", str(message.queue_id)),
        ("Queue Offset:", str(message.queue_offset)),
        ("CommitLog Offset:", str(message.physical_offset)),
        ("Reconsume Times:", str(message.reconsume_times)),
        ("Born Timestamp:", moment(message.born_timestamp_ms)),
        ("Store Timestamp:", moment(message.store_timestamp_ms)),
        ("Born Host:", str(message.born_host)),
        ("Store Host:", str(message.store_host)),
        ("System Flag:", str(message.sys_flag)),
        ("Properties:", properties_text(message, more)),
        ("Message Body Path:", str(path)),
    )
    return "".join(f"{name:<20} {text}\n" for name, text in fields)


def track_text(track: Track) -> str:
    """What became of a message in a group."""
    return f"MessageTrack [consumerGroup={track.group}, trackType={track.kind}, exceptionDesc={shown(track.why)}]"


async def print_tracks(run: Invocation, message: MessageView, end: str) -> None:
    """Print what became of a message in each group, each with ``end`` behind it."""
    try:
        tracks = await run.admin.tracks(message)
    except (OSError, FirearrowError) as error:
        run.note(error)
        return
    run.write("\n\n" if tracks else "\n\nWARN: No Consumer")
    run.write("".join(f"{track_text(track)}{end}" for track in tracks))
