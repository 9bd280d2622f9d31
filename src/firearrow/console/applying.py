"""Changes, carried out: logged before they begin, and with their outcome, also if they fail halfway."""

from __future__ import annotations

from typing import NamedTuple

from firearrow.cli.failures import sentence
from firearrow.cli.parameters import WrongOptions
from firearrow.console.changes import ChangeLog, LoggedChange
from firearrow.console.clusters import Cluster
from firearrow.console.operations import Operation, Ran, Values, run
from firearrow.errors import FirearrowError


class Applied(NamedTuple):
    """Result of a change; ``trouble`` is the reason why there is none."""

    log: LoggedChange
    ran: Ran | None = None
    trouble: str = ""


async def apply(
    changes: ChangeLog,
    user: str,
    cluster: Cluster,
    operation: Operation,
    values: Values,
    undoes: LoggedChange | None = None,
) -> Applied:
    """Carry out a change, or the undo of another."""
    given = values if undoes is None else {"change": [undoes.id]}
    log = changes.begin(user, cluster.name, operation.words, given)
    file = None if undoes is None else changes.undo_file(undoes.id)
    try:
        ran = await run(operation, values, cluster.options, changes.undo_file(log.id), file)
    except (WrongOptions, FirearrowError, OSError) as error:
        changes.failed(log, sentence(error))
        return Applied(log, trouble=log.reason)
    except BaseException as error:
        changes.failed(log, f"ended by {type(error).__name__}")
        raise
    if ran.code:
        changes.failed(log, _reason(ran))
    else:
        changes.done(log)
    await cluster.sampler.look()
    return Applied(log, ran)


def _reason(ran: Ran) -> str:
    """Give the states of the rows of a change that has failed, or else its notes."""
    states = [str(state) for table in ran.tables if "state" in table.columns for state in table.values("state")]
    return "; ".join(dict.fromkeys(states) or (table.note for table in ran.tables))
