"""The text of /metrics: a family's help and type, and a line for each sample, in both formats of Prometheus. Pure.

prometheus_client knows what is asked for and holds the families. It could write them, too, but looks at every character
of every label: 150 ms for 5,000 series, in which the supervisor would compete with its workers for the processor.

https://prometheus.io/docs/specs/om/open_metrics_spec and https://prometheus.io/docs/instrumenting/exposition_formats
"""

import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol

EOF = "# EOF\n"
"""What ends an OpenMetrics text; the older one just ends."""


class Sample(Protocol):
    """One value. Labels that need no escaping, as nearly all, cost three looks for what would need it."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> dict[str, str]: ...

    @property
    def value(self) -> float: ...


class Head(NamedTuple):
    """A family's name, kind (`counter`, `gauge`, `histogram`, `info`) and help."""

    name: str
    kind: str
    text: str


def head(family: Head, openmetrics: bool) -> str:
    """The lines before a family's samples. The older format has no infos, and names a counter as its samples."""
    name, kind, text = family
    if not openmetrics and kind == "counter":
        name += "_total"
    elif not openmetrics and kind == "info":
        name, kind = f"{name}_info", "gauge"
    text = _escaped(text) if openmetrics else text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def lines(samples: Iterable[Sample]) -> str:
    """A line for each sample, labels by name."""
    return "".join([f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}\n" for sample in samples])


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())]) + "}"


def _escaped(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text


def _number(value: float) -> str:
    """As Go reads it."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
