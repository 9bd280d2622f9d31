"""Cause of an error of Spark: one line out of the tracebacks of a worker and of the JVM."""

from __future__ import annotations

import builtins
import re
from textwrap import dedent
from typing import Final

from firearrow.cli.output.sentences import first_line, unforeseen, without_number

# The frames of a traceback and their code are indented; the exception is not.
_RAISED: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?P<frames>(?:[ \t].*\n)*)"
    r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<what>.*))?"
)
_OF_DAEMON: Final = re.compile(r"^Error from python worker:\n((?:  .*\n)+)", re.MULTILINE)
"""Output of a worker that has not started, which Spark indents."""
_OURS: Final = re.compile(
    r"^(?:.*: )?(?:firearrow\.[\w.]+|\w*(?:Connection|Pipe|Timeout)\w*Error): (.+)$", re.MULTILINE
)
_KUBERNETES: Final = re.compile(
    r"Failure executing: (\w+) at: ([^\s?]+)(\?\S*\bwatch=true\S*|\?\S*)?\. Message: (.+?)\.(?= Received status: |$)",
    re.MULTILINE,
)
_RPC: Final = re.compile(r"terminated with:\n\s*status = StatusCode\.(\w+)\n\s*details = \"(.*)\"$", re.MULTILINE)
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
_STACK: Final = re.compile(r"\n\s*at [\w.$/]+\(|\n+JVM stacktrace:")
_CAUSE: Final = re.compile(r"^Caused by: ([\w.$]+: .+)$", re.MULTILINE)
_STATE: Final = re.compile(r"\s*SQLSTATE: .*")
_PACKAGE: Final = re.compile(r"\b(?:[a-z]\w*\.)+(?=[A-Z]\w*: )")
_AROUND: Final = re.compile(
    r"An error occurred while calling \S+\n: "
    r"|\[STREAM_FAILED\] .*? terminated with exception: "
    r"|Job aborted due to stage failure: .*?\(TID \d+\) \(.*?\): "
    r"|Exception in thread \S+ |\d\d/\d\d/\d\d [\d:]+ ERROR \w+: |Error: "
    r"|(?:org\.apache\.spark\.[\w.]+|java\.io\.IOException): "
)
_CHATTER: Final = re.compile(
    r"WARNING: |Using Spark's |Setting .*log level |To adjust logging level "
    r"|\d\d/\d\d/\d\d [\d:]+ (?:WARN|INFO) |\s*$"
)


def of_spark(text: str) -> str:
    """Give the cause in an error text of Spark: the error of a worker, otherwise the error of the JVM."""
    text = _OF_DAEMON.sub(lambda found: dedent(found[1]), text)
    raised = list(_RAISED.finditer(text))
    if raised:
        return _of_worker(raised[-1])
    if call := _RPC.search(text):  # of Spark Connect
        status, details = call.groups()
        return f"the Spark Connect server does not answer: {details}" if status == "UNAVAILABLE" else details
    if ours := _OURS.findall(text):  # without a traceback, see `firearrow.spark.workererrors`
        return without_number(_STATE.sub("", ours[-1]).strip())
    if refused := _KUBERNETES.search(text):
        method, place, query, reason = refused.groups()
        return f"Kubernetes refuses {'WATCH' if 'watch=true' in (query or '') else method} {place}: {reason}"
    head = _peeled(_STACK.split(text, maxsplit=1)[0])
    causes = _CAUSE.findall(text)
    cause = _peeled(causes[-1]) if causes else ""
    if cause in head:
        return head or "Spark failed and does not say why"
    return f"{head.rstrip('.:')}: {cause}"


def of_log(text: str) -> str:
    """Give the first error of a Spark log; empty text without an error."""
    lines = text.splitlines()
    at = next((n for n, line in enumerate(lines) if not _CHATTER.match(line)), len(lines))
    return of_spark("\n".join(lines[at:])) if lines[at:] else ""


def _peeled(text: str) -> str:
    text = text.strip()
    while around := _AROUND.match(text):
        text = text[around.end() :]
    return _PACKAGE.sub("", _STATE.sub("", first_line(text)))


def _of_worker(raised: re.Match[str]) -> str:
    name, what = raised["name"], (raised["what"] or "").strip()
    package, _, name = name.rpartition(".")
    kind = getattr(builtins, name, None) if not package else None
    known = isinstance(kind, type) and issubclass(kind, OSError)
    if what and (known or package.startswith("firearrow.") or what.startswith("[")):
        return _STATE.sub("", without_number(what))
    places = ((path, int(line)) for path, line in _FRAME.findall(raised["frames"]))
    return unforeseen(name, what, places)
