"""Write the monitoring files below `packaging/`: dashboards for Grafana, alerts for Prometheus.

The dashboard of brokers and the alerts use metrics of RocketMQ 5, which the original broker has as well. The dashboard
of gRPC clients uses Firearrow's. `tests/test_monitoring.py` checks that the files are up to date, and that each metric
in them exists.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from firearrow.broker.metrics.families import ROWS
from firearrow.net.exposition import Family
from firearrow.proxy.clientmetrics import FAMILIES
from firearrow.proxy.metrics import ROWS as PROXY_ROWS

PACKAGING: Final = Path(__file__).parent.parent / "packaging"
DASHBOARD: Final = PACKAGING / "grafana-dashboard.json"
GRPC_DASHBOARD: Final = PACKAGING / "grafana-dashboard-grpc.json"
ALERTS: Final = PACKAGING / "prometheus-alerts.yml"
_WIDTH: Final = 24  # of a dashboard, in Grafana's units
_PANEL_HEIGHT: Final = 8
_METRIC: Final = re.compile(r"\brocketmq_\w+")
_CHOSEN: Final = 'cluster=~"$cluster",node_id=~"$broker"'
_OF: Final = "{" + _CHOSEN + "}"
# Else brokers' own topics crowd the charts, and pulls that wait for messages hide all others.
_OF_USERS: Final = "{" + _CHOSEN + ',is_system="false"}'
_AT_ONCE: Final = "{" + _CHOSEN + ',is_long_polling="false"}'


_ERRORS: Final = "{" + _CHOSEN + ',response_code!~"ok|message_not_found"}'


class Panel(NamedTuple):
    """Chart: its title, its expressions with their legends, and a unit of Grafana."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"


class Alert(NamedTuple):
    """Condition that needs a human, and the message to send."""

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str


def _rate(name: str, by: str, of: str = _OF) -> str:
    return f"sum by ({by}) (rate(rocketmq_{name}{of}[$__rate_interval]))"


def _sum(name: str, by: str) -> str:
    return f"sum by ({by}) (rocketmq_{name}{_OF})"


def _largest(name: str, by: str) -> str:
    """Largest value, for metrics that can't be added: the ages on two brokers have no sum."""
    return f"max by ({by}) (rocketmq_{name}{_OF})"


def _quantile(share: float, name: str, by: str, of: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{name}_bucket', f'le, {by}', of)})"


BOARD: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Traffic",
        (
            Panel("Messages in", ((_rate("messages_in_total", "topic", _OF_USERS), "{{topic}}"),),
                  "mps"),
            Panel(
                "Messages out",
                ((_rate("messages_out_total", "consumer_group, topic", _OF_USERS),
                  "{{consumer_group}} {{topic}}"),),
                "mps",
            ),
            Panel(
                "Bytes",
                (
                    (_rate("throughput_in_total", "node_id"), "in {{node_id}}"),
                    (_rate("throughput_out_total", "node_id"), "out {{node_id}}"),
                ),
                "binBps",
            ),
            Panel(
                "Size of a message",
                ((_quantile(0.95, "message_size", "topic", _OF_USERS), "95 % {{topic}}"),),
                "bytes",
            ),
        ),
    ),
    (
        "Groups",
        (
            Panel("Not consumed", ((_sum("consumer_lag_messages", "consumer_group, topic"),
                                    "{{consumer_group}} {{topic}}"),)),
            Panel(
                "Age of the first",
                ((_largest("consumer_lag_latency_milliseconds", "consumer_group, topic"),
                  "{{consumer_group}} {{topic}}"),),
                "ms",
            ),
            Panel("In hand", ((_sum("consumer_inflight_messages", "consumer_group, topic"),
                               "{{consumer_group}} {{topic}}"),)),
            Panel("Dead letters", ((_rate("send_to_dlq_messages_total", "consumer_group"),
                                    "{{consumer_group}}"),), "mps"),
        ),
    ),
    (
        "Requests and clients",
        (
            Panel("Requests", ((_rate("rpc_latency_milliseconds_count", "request_code"),
                                "{{request_code}}"),), "reqps"),
            Panel(
                "How long they take",
                ((_quantile(0.99, "rpc_latency_milliseconds", "request_code", _AT_ONCE),
                  "99 % {{request_code}}"),),
                "ms",
            ),
            Panel(
                "Connections",
                (
                    (_sum("producer_connections", "node_id"), "producers {{node_id}}"),
                    (_sum("consumer_connections", "node_id"), "consumers {{node_id}}"),
                ),
            ),
            Panel("Requests that wait", ((_sum("processor_watermark", "processor"),
                                          "{{processor}}"),)),
        ),
    ),
    (
        "Store",
        (
            Panel("Disk in use", ((_sum("storage_size_bytes", "node_id"), "{{node_id}}"),),
                  "bytes"),
            Panel(
                "Behind",
                (
                    (_sum("storage_flush_behind_bytes", "node_id"), "not on the disk {{node_id}}"),
                    (_sum("storage_dispatch_behind_bytes", "node_id"), "in no queue {{node_id}}"),
                ),
                "bytes",
            ),
            Panel("Age of the first message",
                  ((_largest("storage_message_reserve_time_milliseconds", "node_id"),
                    "{{node_id}}"),), "ms"),
        ),
    ),
    (
        "Times, transactions, POP",
        (
            Panel("Wait for their time", ((_sum("timing_messages", "topic"), "{{topic}}"),)),
            Panel("The timer is late",
                  ((_largest("timer_dequeue_latency_milliseconds", "node_id"),
                    "{{node_id}}"),), "ms"),
            Panel("Open transactions", ((_sum("half_messages", "topic"), "{{topic}}"),)),
            Panel("Popped and come again",
                  ((_rate("pop_revive_retry_messages_total", "consumer_group"),
                    "{{consumer_group}}"),), "mps"),
        ),
    ),
)  # fmt: skip

GRPC_BOARD: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Calls",
        (
            Panel("Calls", ((_rate("proxy_rpc_latency_milliseconds_count", "method"), "{{method}}"),), "reqps"),
            Panel(
                "Errors",
                ((_rate("proxy_rpc_latency_milliseconds_count", "method, response_code", _ERRORS),
                  "{{method}} {{response_code}}"),),
                "reqps",
            ),
            Panel(
                "Duration",
                ((_quantile(0.99, "proxy_rpc_latency_milliseconds", "method", _AT_ONCE), "99 % {{method}}"),),
                "ms",
            ),
        ),
    ),
    (
        "Clients",
        (
            Panel("Clients", ((_sum("proxy_clients", "client_type"), "{{client_type}}"),)),
            Panel(
                "Connections and streams",
                (
                    (_sum("proxy_connections", "node_id"), "connections {{node_id}}"),
                    (_sum("proxy_telemetry_streams", "node_id"), "streams {{node_id}}"),
                ),
            ),
            Panel("Pending receives", ((_sum("proxy_pending_receives", "method"), "{{method}}"),)),
            Panel("Renewed messages", ((_sum("proxy_renewed_messages", "node_id"), "{{node_id}}"),)),
        ),
    ),
    (
        "Measured by clients",
        (
            Panel("Sends", ((_quantile(0.99, "send_cost_time", "topic", _OF), "99 % {{topic}}"),), "ms"),
            Panel("Deliveries", ((_quantile(0.99, "delivery_latency", "consumer_group, topic", _OF),
                                  "99 % {{consumer_group}} {{topic}}"),), "ms"),
            Panel("Processing", ((_quantile(0.99, "process_time", "consumer_group, topic", _OF),
                                  "99 % {{consumer_group}} {{topic}}"),), "ms"),
            Panel("Cached messages", ((_sum("consumer_cached_messages", "consumer_group, topic"),
                                       "{{consumer_group}} {{topic}}"),)),
        ),
    ),
)  # fmt: skip

# The limits are those of `firearrow check`: what is critical there wakes somebody here.
RULES: Final = (
    Alert("RocketmqBrokerDown", 'up{job="rocketmq"} == 0', 2, "critical",
          "{{ $labels.instance }} does not answer"),
    Alert("RocketmqLag", "rocketmq_consumer_lag_messages > 1e6", 5, "critical",
          "{{ $labels.consumer_group }} is {{ $value }} messages behind in {{ $labels.topic }}"),
    Alert("RocketmqLagOld", "rocketmq_consumer_lag_latency_milliseconds > 3600e3", 5, "critical",
          "{{ $labels.consumer_group }} is an hour behind in {{ $labels.topic }}"),
    Alert("RocketmqDeadLetters", "increase(rocketmq_send_to_dlq_messages_total[1h]) > 0", 0,
          "warning", "{{ $labels.consumer_group }} has given up messages of {{ $labels.topic }}"),
    Alert("RocketmqDispatchBehind", "rocketmq_storage_dispatch_behind_bytes > 256 * 1024 * 1024",
          5, "critical", "{{ $labels.node_id }}: messages do not come into queues"),
    Alert("RocketmqFlushBehind", "rocketmq_storage_flush_behind_bytes > 1024 * 1024 * 1024", 5,
          "warning", "{{ $labels.node_id }}: the disk does not follow"),
    Alert("RocketmqSlowSends",
          "histogram_quantile(0.99, sum by (le, node_id) (rate("
          'rocketmq_rpc_latency_milliseconds_bucket{request_code=~"send_.*"}[5m]))) > 200', 10,
          "warning", "{{ $labels.node_id }}: one send of a hundred takes {{ $value }} ms"),
    Alert("RocketmqRefuses",
          'sum by (node_id, response_code) (rate(rocketmq_rpc_latency_milliseconds_count{'
          'response_code=~"system_busy|service_not_available|flush_disk_timeout"}[5m])) > 0', 5,
          "critical", "{{ $labels.node_id }} refuses requests: {{ $labels.response_code }}"),
    Alert("RocketmqTimerLate", "rocketmq_timer_dequeue_latency_milliseconds > 60e3", 5, "critical",
          "{{ $labels.node_id }}: messages are not delivered at their time"),
    Alert("RocketmqOpenTransactions", "rocketmq_half_messages > 100e3", 10, "critical",
          "{{ $labels.topic }}: {{ $value }} transactions that nobody decides"),
)  # fmt: skip


def metrics_in(text: str) -> set[str]:
    """Return the names of the metrics in a text."""
    return set(_METRIC.findall(text))


def families_offered() -> list[Family]:
    """Return all families that a scrape may have."""
    return [*(row.family for row in ROWS), *(row.family for row in PROXY_ROWS), *FAMILIES.values()]


def metrics_offered() -> set[str]:
    """Return all names that a scrape may have."""
    names: set[str] = set()
    for family in families_offered():
        name = family.name
        parts = ("_bucket", "_count", "_sum") if family.kind == "histogram" else ("",)
        names |= {name + part for part in parts}
    return names


def dashboard() -> str:
    """Return the dashboard of brokers in Grafana's import format."""
    return _board("RocketMQ brokers", "firearrow-brokers", "rocketmq_topic_number", BOARD)


def grpc_dashboard() -> str:
    """Return the dashboard of gRPC clients."""
    return _board("RocketMQ gRPC clients", "firearrow-grpc", "rocketmq_proxy_up", GRPC_BOARD)


def _board(title: str, uid: str, sign: str, rows: Sequence[tuple[str, tuple[Panel, ...]]]) -> str:
    """Return a dashboard; ``sign`` is the metric that names the clusters and brokers."""
    panels: list[dict[str, Any]] = []
    top = 0
    for name, charts in rows:
        panels.append({"type": "row", "title": name, "collapsed": False,
                       "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": top}})  # fmt: skip
        top += 1
        width = _WIDTH // len(charts)
        panels += [_panel(chart, at * width, top, width) for at, chart in enumerate(charts)]
        top += _PANEL_HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    board = {
        "title": title,
        "uid": uid,
        "tags": ["rocketmq", "firearrow"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [
            {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"},
            _variable("cluster", "Cluster", f"label_values({sign}, cluster)"),
            _variable("broker", "Broker",
                      f'label_values({sign}{{cluster=~"$cluster"}}, node_id)'),
        ]},
        "panels": panels,
    }  # fmt: skip
    return json.dumps(board, indent=2) + "\n"


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "query": query, "refresh": 2,
        "multi": True, "includeAll": True, "datasource": {"type": "prometheus", "uid": "$source"},
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _panel(panel: Panel, left: int, top: int, width: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "$source"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"h": _PANEL_HEIGHT, "w": width, "x": left, "y": top},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": source, "expr": query,
             "legendFormat": legend}
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip


def alerts() -> str:
    """Return the alerts as a file of rules for Prometheus, with strings as JSON, which YAML accepts."""
    lines = [
        "# Written by `python -m tools.monitoring`: change it there.",
        "groups:",
        "  - name: rocketmq",
        "    rules:",
    ]
    for rule in RULES:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {json.dumps(rule.expression)}",
            f"        for: {rule.minutes}m",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(rule.summary)}",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the files."""
    DASHBOARD.write_text(dashboard(), encoding="utf-8")
    GRPC_DASHBOARD.write_text(grpc_dashboard(), encoding="utf-8")
    ALERTS.write_text(alerts(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
