"""The dashboard and the alerts below `packaging/` are up to date, and use existing metrics."""

from __future__ import annotations

import json
import re

from tests import scrapes
from tools import monitoring


def test_files_are_those_that_the_tool_writes() -> None:
    assert monitoring.DASHBOARD.read_text(encoding="utf-8") == monitoring.dashboard()
    assert monitoring.GRPC_DASHBOARD.read_text(encoding="utf-8") == monitoring.grpc_dashboard()
    assert monitoring.ALERTS.read_text(encoding="utf-8") == monitoring.alerts()


def test_each_metric_that_is_asked_for_exists() -> None:
    named = monitoring.metrics_in(monitoring.dashboard() + monitoring.grpc_dashboard() + monitoring.alerts())
    assert named
    assert named - monitoring.metrics_offered() == set()


def test_the_original_has_them_as_well() -> None:
    named = monitoring.metrics_in(monitoring.dashboard() + monitoring.alerts())
    families = scrapes.golden()
    offered = {name for family in families.values() for name, _ in family.values}
    assert named - offered == set()


def test_labels_that_are_asked_for_are_those_of_their_metric() -> None:
    of = {family.name: {*family.labels, *scrapes.COMMON, "le"} for family in monitoring.families_offered()}
    panels = [panel for _, charts in (*monitoring.BOARD, *monitoring.GRPC_BOARD) for panel in charts]
    expressions = [query for panel in panels for query, _ in panel.queries]
    expressions += [rule.expression for rule in monitoring.RULES]
    for expression in expressions:
        for name in monitoring.metrics_in(expression):
            family = re.sub(r"_(bucket|count|sum)$", "", name)
            asked = set(re.findall(r"(\w+)=~?\"", expression))
            for group in re.findall(r"by \(([^)]*)\)", expression):
                asked |= {label.strip() for label in group.split(",")}
            assert asked <= of[family if family in of else name], expression


def test_each_chart_shows_something_of_the_originals_scrape_by_its_legend() -> None:
    families = scrapes.parse(scrapes.GOLDEN.read_text(encoding="utf-8"), common=())
    values = [it for family in families.values() for it in family.values]
    for panel in (panel for _, charts in monitoring.BOARD for panel in charts):
        for query, legend in panel.queries:
            [name] = monitoring.metrics_in(query)
            [grouped] = re.findall(r"by \(([^)]*)\)", query)
            by = {label.strip() for label in grouped.split(",")} - {"le"}
            assert set(re.findall(r"{{(\w+)}}", legend)) == by, panel.title
            wanted = set(re.findall(r'(\w+)="(\w+)"', query))
            found = [dict(labels) for own, labels in values if own == name and wanted <= {*labels}]
            assert found, panel.title
            assert "" not in {of[label] for of in found for label in by}, panel.title


def test_ages_are_not_added_up() -> None:
    expressions = [query for _, charts in monitoring.BOARD for it in charts for query, _ in it.queries]
    ages = [it for it in expressions if re.search(r"rocketmq_\w+(latency|time)_milliseconds{", it)]
    assert len(ages) == 3
    assert [it for it in ages if not it.startswith("max by")] == []


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
