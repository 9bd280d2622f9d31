"""The dashboard and the alerts below `packaging/` are those of `tools/monitoring.py`, and ask for
what there is."""

from __future__ import annotations

import json
import re

from firearrow.broker.metrics.families import ROWS
from tests import scrapes
from tools import monitoring


def test_files_are_those_that_the_tool_writes() -> None:
    assert monitoring.DASHBOARD.read_text(encoding="utf-8") == monitoring.dashboard()
    assert monitoring.ALERTS.read_text(encoding="utf-8") == monitoring.alerts()


def test_each_metric_that_is_asked_for_exists() -> None:
    named = monitoring.metrics_in(monitoring.dashboard() + monitoring.alerts())
    assert named
    assert named - monitoring.metrics_offered() == set()


def test_the_original_has_them_as_well() -> None:
    named = monitoring.metrics_in(monitoring.dashboard() + monitoring.alerts())
    families = scrapes.golden()
    offered = {name for family in families.values() for name, _ in family.values}
    assert named - offered == set()


def test_labels_that_are_asked_for_are_those_of_their_metric() -> None:
    of = {row.family.name: {*row.family.labels, *scrapes.COMMON, "le"} for row in ROWS}
    panels = [panel for _, charts in monitoring.BOARD for panel in charts]
    expressions = [query for panel in panels for query, _ in panel.queries]
    expressions += [rule.expression for rule in monitoring.RULES]
    for expression in expressions:
        for name in monitoring.metrics_in(expression):
            family = re.sub(r"_(bucket|count|sum)$", "", name)
            asked = set(re.findall(r"(\w+)=~?\"", expression))
            for group in re.findall(r"by \(([^)]*)\)", expression):
                asked |= {label.strip() for label in group.split(",")}
            assert asked <= of[family if family in of else name], expression


def test_the_alerts_are_written_as_they_are_meant() -> None:
    written = re.findall(r"^ +expr: (.*)$", monitoring.alerts(), re.MULTILINE)
    assert [json.loads(text) for text in written] == [it.expression for it in monitoring.RULES]
    for rule in monitoring.RULES:
        assert rule.expression.count("(") == rule.expression.count(")")
        assert rule.expression.count("{") == rule.expression.count("}")


def test_panels_lie_side_by_side() -> None:
    board = json.loads(monitoring.dashboard())
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert all(left + width <= 24 for _, width, left, _ in places)
