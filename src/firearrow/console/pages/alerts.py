"""Alerts: present findings, rules with limits that can be changed, silences, and deliveries to a webhook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from firearrow.cli.output.reports import Cell, Table, as_moment
from firearrow.client.diagnosis.checks import Thresholds
from firearrow.client.diagnosis.findings import Level
from firearrow.console.alerts import FindingKey, Silence
from firearrow.console.forms import form_of
from firearrow.console.operations import OPERATIONS, fields_of
from firearrow.console.page import Declared, Page, View
from firearrow.errors import ConfigError

FINDINGS: Final = ("level", "rule", "subject", "evidence", "since", "state")
RULES: Final = ("limit", "meaning", "warning", "critical", "default")
SILENCES: Final = ("rule", "subject", "until", "reason")
DELIVERIES: Final = ("at", "change", "rule", "subject", "level", "state", "tries", "reason")
HOURS: Final[Mapping[str, int]] = {"1": 1, "8": 8, "24": 24, "168": 168}
HOUR_MS: Final = 3_600_000


async def alerts(view: View) -> Page:
    """Show alerts; ``rule`` with ``subject`` in the address asks for a silence, ``limit`` for another limit."""
    cluster, query = view.cluster, view.query
    known, health = cluster.alerts, cluster.health
    grave = [it for it in health.findings if it.level is not Level.OK]
    rows: list[list[Cell]] = [
        [
            it.level.name.lower(),
            it.rule,
            it.subject,
            it.evidence,
            as_moment(known.since_ms(it) or 0),
            "silenced" if known.is_silent(FindingKey.of(it)) else "announced" if cluster.webhook else "shown here",
        ]
        for it in grave
    ]
    silences: list[list[Cell]] = [
        [it.rule, it.subject, as_moment(it.until_ms), it.reason] for it in known.silences.values()
    ]
    findings = view.table(Table("Findings", FINDINGS, rows), "findings-")
    silent = view.table(Table("Silences", SILENCES, silences), "silences-")
    rules = view.table(Table("Rules", RULES, _rules(known.limits)), "rules-")
    limit = query.get("limit") if query.get("limit") in Thresholds._fields else None
    return Page(
        "alerts.html",
        "Alerts",
        {
            "counts": Counter(it.level.name.lower() for it in grave),
            "health": health,
            "findings": findings,
            "finding_actions": [[("Silence", _asking(rule=row[1].text, subject=row[2].text))] for row in findings.rows],
            "rules": rules,
            "rule_actions": [[("Change", _asking(limit=row[0].text))] for row in rules.rows],
            "silences": silent,
            "webhook": cluster.webhook,
            "deliveries": view.table(_deliveries(view), "deliveries-"),
            "wanted": FindingKey(query["rule"], query["subject"]) if {"rule", "subject"} <= query.keys() else None,
            "limit": limit,
            "limit_now": str(getattr(known.limits, limit)) if limit else "",
            "hours": HOURS,
            "is_kept": known.is_kept,
            "fault": query.get("fault", ""),
            "ends": [[it.rule, it.subject] for it in known.silences.values()],
        },
        is_live=True,
    )


def _asking(**fields: str) -> str:
    return f"?{urlencode(fields)}"


def _rules(limits: Thresholds) -> list[list[Cell]]:
    """Give each limit with its meaning, as the command has it."""
    texts = {field.name: field.help.partition(" (default")[0] for field in fields_of(OPERATIONS["check"])}
    rows: list[list[Cell]] = []
    for name, usual in Thresholds()._asdict().items():
        limit = getattr(limits, name)
        pair = [None, limit] if name == "brokers" else [None if it is None else _whole(it) for it in limit]
        rows.append([name, texts.get(name, ""), *pair, "yes" if limit == usual else f"no: {usual}"])
    return rows


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _deliveries(view: View) -> Table:
    webhook = view.cluster.webhook
    rows: list[list[Cell]] = [
        [as_moment(it.at_ms), *it[1:]] for it in (webhook.deliveries if webhook is not None else ())
    ]
    return Table("Deliveries", DELIVERIES, rows)


async def change(view: View) -> Response:
    """Change a limit, or begin or end a silence; lead back to the page."""
    values = await form_of(view.request)
    fields = {name: texts[-1].strip() for name, texts in values.items()}
    log, where = view.changes.begin(view.user, view.cluster.name, _change_of(fields), values), ""
    try:
        _carry_out(view, fields)
    except ConfigError as error:
        view.changes.failed(log, str(error))
        where = _asking(fault=str(error))
    else:
        view.changes.done(log)
        await view.cluster.check_health()
    return RedirectResponse(f"{view.href('alerts')}{where}", 303)


def _change_of(fields: Mapping[str, str]) -> str:
    """Give the name of a change in the log."""
    if "limit" in fields:
        return "alerts limit"
    return "alerts end silence" if "end" in fields else "alerts silence"


def _carry_out(view: View, fields: Mapping[str, str]) -> None:
    known = view.cluster.alerts
    if "limit" in fields:
        text = fields.get("value", "") or f"{fields.get('warning', '')}:{fields.get('critical', '')}"
        known.set_limit(fields["limit"], text)
    elif "end" in fields:
        known.end_silence(FindingKey(fields.get("rule", ""), fields.get("subject", "")))
    else:
        hours = HOURS.get(fields.get("hours", ""), 1)
        until_ms = view.cluster.clock.now_ms() + hours * HOUR_MS
        known.silence(Silence(fields.get("rule", ""), fields.get("subject", ""), until_ms, fields.get("reason", "")))


PAGES: Final = (Declared("/alerts", alerts), Declared("/alerts", change, ("POST",)))
