"""`firearrow store cat`: records, as JSON lines or as an Arrow stream."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from firearrow.cli.output.stream import naming_output
from firearrow.cli.parameters import TIMES, Options, WrongOptions, WrongValue, moment, require_order, switch, valued
from firearrow.cli.store.options import USUAL, Directory, LayoutOptions
from firearrow.cli.store.shown import print_messages

if TYPE_CHECKING:
    from firearrow.store.offline import Selection

Span = tuple[int, int]


def span(text: str) -> Span:
    """Read ``FROM..TO``."""
    first, dots, end = text.partition("..")
    try:
        low = int(first) if first else 0
        high = int(end) if end else (1 << 62 if dots else low + 1)
    except ValueError:
        raise WrongValue(f"{text!r} is not FROM..TO") from None
    return low, high


class RecordChoice(Options):
    """Selection of records."""

    topic: Annotated[str | None, valued("NAME", "records of this topic")] = None
    queue: Annotated[int | None, valued("ID", "records of this queue")] = None
    queue_offset: Annotated[
        Span | None,
        valued("FROM..TO", "queue offsets, TO not included; either may be left out; one number is one offset", span),
    ] = None
    offset: Annotated[int | None, valued("N", "the record at a physical offset")] = None
    physical_from: Annotated[int | None, valued("N", "records from this physical offset on", name="--from")] = None
    physical_to: Annotated[int | None, valued("N", "records before this physical offset", name="--to")] = None
    key: Annotated[str | None, valued("WORD", "records with this word in KEYS")] = None
    unique_key: Annotated[str | None, valued("ID", "the record with this id from its client")] = None
    tag: Annotated[str | None, valued("TAG", "records with this tag")] = None
    since: Annotated[int | None, valued("TIME", "stored at this time or later", moment)] = None
    until: Annotated[int | None, valued("TIME", f"stored at this time or before; {TIMES}", moment)] = None

    def selection(self) -> Selection:
        """Give the selection for the offline tools."""
        import msgspec

        from firearrow.store.offline import Selection

        low, high = self.queue_offset or (None, None)
        physical_from, physical_to = self.physical_from, self.physical_to
        if self.offset is not None:
            physical_from, physical_to = self.offset, self.offset + 1
        given = {
            "topic": self.topic,
            "queue_id": self.queue,
            "queue_from": low,
            "queue_to": high,
            "physical_from": physical_from,
            "physical_to": physical_to,
            "since_ms": self.since,
            "until_ms": self.until,
            "key": self.key,
            "unique_key": self.unique_key,
            "tag": self.tag,
        }
        return msgspec.convert({k: v for k, v in given.items() if v is not None}, Selection)


ALL = RecordChoice()


def cat(
    directory: Directory,
    /,
    *,
    layout: LayoutOptions = USUAL,
    chosen: RecordChoice = ALL,
    limit: Annotated[int | None, valued("N", "largest number of records")] = None,
    stored_body: Annotated[bool, switch("leave compressed bodies as they are")] = False,
    form: Annotated[Literal["json", "arrow"], valued(None, "JSON lines (default) or Arrow", name="--format")] = "json",
    as_lines: Annotated[bool, switch("print JSON lines", name="--json")] = False,
) -> int:
    """Print records, as JSON lines or as an Arrow stream."""
    from itertools import islice

    from firearrow.store.offline import StoreView, as_row, find, write_stream

    if as_lines and form == "arrow":
        raise WrongOptions("argument --json: not allowed with argument --format arrow")
    require_order(chosen.since, chosen.until)
    with StoreView(layout.of(directory)) as view:
        found = islice(find(view, chosen.selection()), limit)
        if form == "json":
            print_messages(found, stored_body=stored_body)
        else:
            with naming_output():
                write_stream((as_row(it, stored_body=stored_body) for it in found), sys.stdout.buffer)
    return 0
