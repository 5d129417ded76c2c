"""Parts of dashboards. Invariants: the description of a panel defines its numbers; positions follow from the
order and the widths; the JSON is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH = 24
"""columns of Grafana's grid"""
PROMETHEUS = {"type": "prometheus", "uid": "tokenweir-prometheus"}
POSTGRES = {"type": "grafana-postgresql-datasource", "uid": "tokenweir-postgres"}

# Colours of thresholds. A stat without limits stays neutral.
GOOD, FAIR, BAD = "green", "orange", "red"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL with a legend; or SQL, whose columns are the legend."""

    text: str
    legend: str = ""
    sql: bool = False
    shape: str = "time_series"
    """time_series, table or heatmap"""
    at_end: bool = False
    """only the value at the end of the range"""

    def json(self, ref: str) -> dict[str, Any]:
        """Return the target of a panel."""
        if self.sql:
            return {
                "refId": ref, "datasource": POSTGRES, "format": self.shape, "rawQuery": True, "editorMode": "code",
                "rawSql": self.text,
            }  # fmt: skip
        return {
            "refId": ref, "datasource": PROMETHEUS, "expr": self.text, "legendFormat": self.legend or "__auto",
            "format": self.shape, "instant": self.at_end, "range": not self.at_end, "editorMode": "code",
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel of a dashboard."""

    title: str
    says: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 8
    stacked: bool = False
    bars: bool = False
    limits: Sequence[tuple[float | None, str]] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    """units of table columns that differ from `unit`"""
    link: str = ""
    """the page of the console that the panel links to"""
    links: Mapping[str, str] = field(default_factory=dict)
    """table column → the page of the console that its cells link to"""

    def json(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Return the panel of a dashboard."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.says,
            "datasource": POSTGRES if self.queries[0].sql else PROMETHEUS,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [query.json(ref) for query, ref in zip(self.queries, "ABCDEFGH", strict=False)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": self._overrides()},
            "options": self._options(),
            "links": [_console_link(self.link)] if self.link else [],
        }

    def _defaults(self) -> dict[str, Any]:
        made: dict[str, Any] = {"unit": self.unit}
        if self.limits:
            steps = [{"value": value, "color": colour} for value, colour in self.limits]
            made["thresholds"] = {"mode": "absolute", "steps": steps}
            made["color"] = {"mode": "thresholds"}
        if self.kind == "timeseries":
            made["custom"] = {
                "axisSoftMin": 0,
                "drawStyle": "bars" if self.bars else "line",
                "fillOpacity": 80 if self.bars else 20 if self.stacked else 8,
                "lineWidth": 1 if self.stacked or self.bars else 2,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            }
        return made

    def _overrides(self) -> list[dict[str, Any]]:
        properties: list[tuple[str, dict[str, Any]]] = [
            (name, {"id": "unit", "value": unit}) for name, unit in self.units.items()
        ]
        properties += [(name, {"id": "links", "value": [_console_link(page)]}) for name, page in self.links.items()]
        return [{"matcher": {"id": "byName", "options": name}, "properties": [one]} for name, one in properties]

    def _options(self) -> dict[str, Any]:
        match self.kind:
            case "timeseries":
                return {
                    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                    "tooltip": {"mode": "multi", "sort": "desc"},
                }
            case "stat":
                shown = {"calcs": ["lastNotNull"], "fields": "/.*/" if self.queries[0].sql else "", "values": False}
                return {"reduceOptions": shown, "graphMode": "none", "colorMode": "value", "textMode": "auto"}
            case "heatmap":
                return {
                    "calculate": False,
                    "color": {"scheme": "Blues", "mode": "scheme"},
                    "yAxis": {"unit": self.unit},
                }
            case _:
                return {"showHeader": True, "cellHeight": "sm"}


CONSOLE_URL = "http://127.0.0.1:8090"


def _console_link(page: str) -> dict[str, Any]:
    return {"title": "Open in the console", "url": f"${{console}}/#/{page}", "targetBlank": True}


def console_variable() -> dict[str, Any]:
    """The address of the console, to which panels link."""
    return {
        "type": "textbox", "name": "console", "label": "Console", "query": CONSOLE_URL,
        "current": {"text": CONSOLE_URL, "value": CONSOLE_URL}, "skipUrlSync": False,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a dashboard: all values, one or several."""

    name: str
    label: str
    query: str
    sql: bool = False

    def json(self) -> dict[str, Any]:
        """Return the variable of a dashboard. In SQL "All" is `%`, and only one value can be selected."""
        return {
            "type": "query", "name": self.name, "label": self.label, "query": self.query, "definition": self.query,
            "datasource": POSTGRES if self.sql else PROMETHEUS, "refresh": 2, "sort": 1, "includeAll": True,
            "multi": not self.sql, "allValue": "%" if self.sql else ".*",
            "current": {"text": "All", "value": "$__all"},
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A dashboard."""

    uid: str
    title: str
    says: str
    panels: Sequence[Panel]
    variables: Sequence[Variable] = ()
    since: str = "now-1h"
    refresh: str = "10s"

    def json(self) -> dict[str, Any]:
        """Return the dashboard in Grafana's format."""
        return {
            "uid": self.uid,
            "title": f"Tokenweir: {self.title}",
            "description": self.says,
            "tags": ["tokenweir"],
            "schemaVersion": 41,
            "version": 1,
            "editable": False,
            "timezone": "utc",
            "time": {"from": self.since, "to": "now"},
            "refresh": self.refresh,
            "graphTooltip": 1,
            "links": [{"type": "dashboards", "tags": ["tokenweir"], "title": "Tokenweir", "includeVars": False}],
            "templating": {"list": [*(variable.json() for variable in self.variables), console_variable()]},
            "panels": placed(self.panels),
        }


def placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Place panels in rows: a panel that does not fit begins the next row, below the highest panel of this one."""
    made: list[dict[str, Any]] = []
    x = y = highest = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDTH:
            x, y, highest = 0, y + highest, 0
        made.append(panel.json(number, x, y))
        x, highest = x + panel.width, max(highest, panel.height)
    return made
