"""`firearrow lag`: lag of consumer groups, in messages and in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Annotated, Final, Literal

from firearrow.cli.cluster.masters import matches
from firearrow.cli.cluster.options import ANY, ClusterOptions
from firearrow.cli.cluster.progress import Progress, of_all, of_group, with_times, with_wanted
from firearrow.cli.output.listing import PLAIN, Output
from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.cli.parameters import Parameter, switch, valued

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "group": ("group",),
    "topic": ("group", "topic"),
    "queue": ("group", "topic", "broker", "queueId", "offset", "endOffset", "consumedAt"),
}
VALUES: Final = ("lag", "lagSeconds")
FILTERED: Final = "filteredLag"
WILD: Final = frozenset("*?[")


async def lag(
    group: Annotated[str | None, Parameter("a group, or a pattern of groups (default: all)", names_of="groups")] = None,
    /,
    *,
    topic: Annotated[str | None, valued("NAME", "in this topic", names_of="topics")] = None,
    by: Annotated[
        Literal["group", "topic", "queue"] | None,
        Parameter("content of a row (default: group; topic for a single group)"),
    ] = None,
    filtered: Annotated[
        bool, switch("also count the messages that the filter of a group selects, exactly: looks at each message")
    ] = False,
    at_least: Annotated[int, valued("N", "rows with this lag or more (default: 0)")] = 0,
    cluster: ClusterOptions = ANY,
    output: Output = PLAIN,
) -> None:
    """Show the lag of consumer groups, in messages and in time."""
    is_one = group is not None and not WILD & set(group)
    async with cluster.admin() as admin:
        if group is not None and is_one:
            found = await of_group(admin, group, topic)
        else:
            found = await of_all(admin, lambda name: matches(name, group))
            found = [it for it in found if topic in (None, it.queue.topic)]
        found = await with_times(admin, found)
        if filtered:
            found = await with_wanted(admin, found)
    kind = by or ("topic" if is_one else "group")
    output.show(lag_table(found, kind, filtered=filtered, at_least=at_least))


def lag_table(found: Sequence[Progress], kind: str, *, filtered: bool = False, at_least: int = 0) -> Table:
    """Give the lag by group, topic or queue. Messages of several queues add up; of their ages the largest counts."""
    key = _KEYS[kind]
    rows: list[list[Cell]] = []
    for keys, several in groupby(found, key):
        queues = list(several)
        behind = sum(it.at.lag for it in queues)
        if behind < at_least:
            continue
        ages = [it.behind_ms for it in queues if it.behind_ms is not None]
        row: list[Cell] = [*keys, behind, max(ages) / 1000 if ages else None]
        if filtered:
            counts = [it.wanted for it in queues]
            row.append(None if None in counts else sum(count or 0 for count in counts))
        rows.append(row)
    note = ""
    if filtered and any(row[-1] is None for row in rows):
        note = "filteredLag is only known of groups that are online."
    columns = [*KEYS[kind], *VALUES, *([FILTERED] if filtered else [])]
    return Table("Lag", columns, rows, note)


_KEYS: Final[dict[str, Callable[[Progress], tuple[Cell, ...]]]] = {
    "group": lambda it: (it.group,),
    "topic": lambda it: (it.group, it.queue.topic),
    "queue": lambda it: (
        it.group,
        it.queue.topic,
        it.queue.broker_name,
        it.queue.queue_id,
        it.at.consumer_offset,
        it.at.broker_offset,
        as_moment(it.at.last_timestamp),
    ),
}
