"""Export of metrics: RocketMQ's keys, which its broker and its controller share.

Source: RocketMQ's ``BrokerConfig``, ``ControllerConfig``, ``BrokerMetricsManager``.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from firearrow.config.listening import ListeningKeys
from firearrow.config.table import OptionalHost, Port, PositiveLong
from firearrow.errors import ConfigError

_LABEL: Final = r"[a-zA-Z_][a-zA-Z0-9_]*:[^,:\x00-\x1f\x7f]*"
MetricsLabels = Annotated[str, Meta(pattern=rf"({_LABEL}(,{_LABEL})*)?", title="name:value, several separated by ,")]
_HEADER: Final = r"[A-Za-z0-9_-]+:[^,:\x00-\x1f\x7f]*"
MetricsHeaders = Annotated[str, Meta(pattern=rf"({_HEADER}(,{_HEADER})*)?", title="name:value, several separated by ,")]


class MetricsKeys(ListeningKeys, frozen=True):
    """Kind and receiver of the exported metrics."""

    # fmt: off
    metrics_exporter_type: Annotated[Literal["DISABLE", "PROM", "OTLP_GRPC", "LOG"], "PROM: metrics, and how the server is, can be asked for by HTTP (`/metrics`, `/readyz`); OTLP_GRPC: they are sent to a collector; LOG: they are lines of the log"] = "DISABLE"
    metrics_prom_exporter_port: Annotated[Port, "PROM: port for that; 0 takes a free one"] = 5557
    metrics_prom_exporter_host: Annotated[OptionalHost, "PROM: address to listen on for that; empty: brokerIP1, or where a controller listens"] = ""
    metrics_grpc_exporter_target: Annotated[str, "OTLP_GRPC: the collector, `https://host:4317`; without a scheme it is https, `http://` does not encrypt"] = ""
    metrics_grpc_exporter_header: Annotated[MetricsHeaders, "OTLP_GRPC: headers that the collector gets with each request"] = ""
    metric_grpc_exporter_time_out_in_mills: Annotated[PositiveLong, "OTLP_GRPC: ms that the collector has to answer"] = 3000
    metric_grpc_exporter_interval_in_mills: Annotated[PositiveLong, "OTLP_GRPC: ms from one sending to the next"] = 60_000
    metric_logging_exporter_interval_in_mills: Annotated[PositiveLong, "LOG: ms from one line to the next"] = 10_000
    metrics_label: Annotated[MetricsLabels, "labels that each metric gets, `name:value` separated by `,`"] = ""
    metrics_in_delta: Annotated[bool, "OTLP_GRPC, LOG: whether counters and histograms are sent as the growth since the last time; each metric has the label `aggregation=\"delta\"` then, with PROM that alone"] = False
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse metrics that would go nowhere."""
        super().__post_init__()
        if self.metrics_exporter_type == "OTLP_GRPC" and not self.metrics_grpc_exporter_target:
            raise ConfigError("metricsExporterType=OTLP_GRPC needs metricsGrpcExporterTarget")

    @property
    def has_metrics(self) -> bool:
        """True if metrics are counted at all."""
        return self.metrics_exporter_type != "DISABLE"
