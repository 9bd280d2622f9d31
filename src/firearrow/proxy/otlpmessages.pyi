# Written by tools/write_protos.py
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Literal

from google.protobuf.internal import containers
from google.protobuf.message import Message as _Message

class AnyValue(_Message):
    string_value: str
    bool_value: bool
    int_value: int
    double_value: float
    array_value: Final[ArrayValue]
    kvlist_value: Final[KeyValueList]
    bytes_value: bytes
    def __init__(
        self,
        *,
        string_value: str | None = None,
        bool_value: bool | None = None,
        int_value: int | None = None,
        double_value: float | None = None,
        array_value: ArrayValue | None = None,
        kvlist_value: KeyValueList | None = None,
        bytes_value: bytes | None = None,
    ) -> None: ...
    def HasField(
        self,
        field_name: Literal[
            "string_value",
            "bool_value",
            "int_value",
            "double_value",
            "array_value",
            "kvlist_value",
            "bytes_value",
            "value",
        ],
    ) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "string_value",
            "bool_value",
            "int_value",
            "double_value",
            "array_value",
            "kvlist_value",
            "bytes_value",
            "value",
        ],
    ) -> None: ...
    def WhichOneof(
        self, oneof_group: Literal["value"]
    ) -> (
        Literal["string_value", "bool_value", "int_value", "double_value", "array_value", "kvlist_value", "bytes_value"]
        | None
    ): ...

class ArrayValue(_Message):
    values: Final[containers.RepeatedCompositeFieldContainer[AnyValue]]
    def __init__(self, *, values: Iterable[AnyValue] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["values"]) -> None: ...

class KeyValueList(_Message):
    values: Final[containers.RepeatedCompositeFieldContainer[KeyValue]]
    def __init__(self, *, values: Iterable[KeyValue] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["values"]) -> None: ...

class KeyValue(_Message):
    key: str
    value: Final[AnyValue]
    def __init__(self, *, key: str | None = None, value: AnyValue | None = None) -> None: ...
    def HasField(self, field_name: Literal["value"]) -> bool: ...
    def ClearField(self, field_name: Literal["key", "value"]) -> None: ...

class InstrumentationScope(_Message):
    name: str
    version: str
    attributes: Final[containers.RepeatedCompositeFieldContainer[KeyValue]]
    def __init__(
        self, *, name: str | None = None, version: str | None = None, attributes: Iterable[KeyValue] | None = None
    ) -> None: ...
    def ClearField(self, field_name: Literal["name", "version", "attributes"]) -> None: ...

class Resource(_Message):
    attributes: Final[containers.RepeatedCompositeFieldContainer[KeyValue]]
    def __init__(self, *, attributes: Iterable[KeyValue] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["attributes"]) -> None: ...

class AggregationTemporality(IntEnum):
    AGGREGATION_TEMPORALITY_UNSPECIFIED = 0
    AGGREGATION_TEMPORALITY_DELTA = 1
    AGGREGATION_TEMPORALITY_CUMULATIVE = 2

class ResourceMetrics(_Message):
    resource: Final[Resource]
    scope_metrics: Final[containers.RepeatedCompositeFieldContainer[ScopeMetrics]]
    schema_url: str
    def __init__(
        self,
        *,
        resource: Resource | None = None,
        scope_metrics: Iterable[ScopeMetrics] | None = None,
        schema_url: str | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["resource"]) -> bool: ...
    def ClearField(self, field_name: Literal["resource", "scope_metrics", "schema_url"]) -> None: ...

class ScopeMetrics(_Message):
    scope: Final[InstrumentationScope]
    metrics: Final[containers.RepeatedCompositeFieldContainer[Metric]]
    schema_url: str
    def __init__(
        self,
        *,
        scope: InstrumentationScope | None = None,
        metrics: Iterable[Metric] | None = None,
        schema_url: str | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["scope"]) -> bool: ...
    def ClearField(self, field_name: Literal["scope", "metrics", "schema_url"]) -> None: ...

class Metric(_Message):
    name: str
    description: str
    unit: str
    gauge: Final[Gauge]
    sum: Final[Sum]
    histogram: Final[Histogram]
    def __init__(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        unit: str | None = None,
        gauge: Gauge | None = None,
        sum: Sum | None = None,
        histogram: Histogram | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["gauge", "sum", "histogram", "data"]) -> bool: ...
    def ClearField(
        self, field_name: Literal["name", "description", "unit", "gauge", "sum", "histogram", "data"]
    ) -> None: ...
    def WhichOneof(self, oneof_group: Literal["data"]) -> Literal["gauge", "sum", "histogram"] | None: ...

class Gauge(_Message):
    data_points: Final[containers.RepeatedCompositeFieldContainer[NumberDataPoint]]
    def __init__(self, *, data_points: Iterable[NumberDataPoint] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["data_points"]) -> None: ...

class Sum(_Message):
    data_points: Final[containers.RepeatedCompositeFieldContainer[NumberDataPoint]]
    aggregation_temporality: int
    is_monotonic: bool
    def __init__(
        self,
        *,
        data_points: Iterable[NumberDataPoint] | None = None,
        aggregation_temporality: int | None = None,
        is_monotonic: bool | None = None,
    ) -> None: ...
    def ClearField(self, field_name: Literal["data_points", "aggregation_temporality", "is_monotonic"]) -> None: ...

class Histogram(_Message):
    data_points: Final[containers.RepeatedCompositeFieldContainer[HistogramDataPoint]]
    aggregation_temporality: int
    def __init__(
        self, *, data_points: Iterable[HistogramDataPoint] | None = None, aggregation_temporality: int | None = None
    ) -> None: ...
    def ClearField(self, field_name: Literal["data_points", "aggregation_temporality"]) -> None: ...

class NumberDataPoint(_Message):
    attributes: Final[containers.RepeatedCompositeFieldContainer[KeyValue]]
    start_time_unix_nano: int
    time_unix_nano: int
    as_double: float
    as_int: int
    flags: int
    def __init__(
        self,
        *,
        attributes: Iterable[KeyValue] | None = None,
        start_time_unix_nano: int | None = None,
        time_unix_nano: int | None = None,
        as_double: float | None = None,
        as_int: int | None = None,
        flags: int | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["as_double", "as_int", "value"]) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "attributes", "start_time_unix_nano", "time_unix_nano", "as_double", "as_int", "flags", "value"
        ],
    ) -> None: ...
    def WhichOneof(self, oneof_group: Literal["value"]) -> Literal["as_double", "as_int"] | None: ...

class HistogramDataPoint(_Message):
    attributes: Final[containers.RepeatedCompositeFieldContainer[KeyValue]]
    start_time_unix_nano: int
    time_unix_nano: int
    count: int
    sum: float
    bucket_counts: Final[containers.RepeatedScalarFieldContainer[int]]
    explicit_bounds: Final[containers.RepeatedScalarFieldContainer[float]]
    flags: int
    min: float
    max: float
    def __init__(
        self,
        *,
        attributes: Iterable[KeyValue] | None = None,
        start_time_unix_nano: int | None = None,
        time_unix_nano: int | None = None,
        count: int | None = None,
        sum: float | None = None,
        bucket_counts: Iterable[int] | None = None,
        explicit_bounds: Iterable[float] | None = None,
        flags: int | None = None,
        min: float | None = None,
        max: float | None = None,
    ) -> None: ...
    def HasField(self, field_name: Literal["sum", "min", "max"]) -> bool: ...
    def ClearField(
        self,
        field_name: Literal[
            "attributes",
            "start_time_unix_nano",
            "time_unix_nano",
            "count",
            "sum",
            "bucket_counts",
            "explicit_bounds",
            "flags",
            "min",
            "max",
        ],
    ) -> None: ...

class ExportMetricsServiceRequest(_Message):
    resource_metrics: Final[containers.RepeatedCompositeFieldContainer[ResourceMetrics]]
    def __init__(self, *, resource_metrics: Iterable[ResourceMetrics] | None = None) -> None: ...
    def ClearField(self, field_name: Literal["resource_metrics"]) -> None: ...

class ExportMetricsServiceResponse(_Message):
    partial_success: Final[ExportMetricsPartialSuccess]
    def __init__(self, *, partial_success: ExportMetricsPartialSuccess | None = None) -> None: ...
    def HasField(self, field_name: Literal["partial_success"]) -> bool: ...
    def ClearField(self, field_name: Literal["partial_success"]) -> None: ...

class ExportMetricsPartialSuccess(_Message):
    rejected_data_points: int
    error_message: str
    def __init__(self, *, rejected_data_points: int | None = None, error_message: str | None = None) -> None: ...
    def ClearField(self, field_name: Literal["rejected_data_points", "error_message"]) -> None: ...
