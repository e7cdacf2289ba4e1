"""The dashboards of docs/dashboards.yaml for Grafana, made with its own typed library, as JSON in the chart."""

import json
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

FOLDER = Path(__file__).resolve().parents[1] / "charts" / "slipway" / "files" / "dashboards"
WORDS = Path(__file__).with_name("dashboards.yaml")
TAG = "slipway"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
EVERY = VariableOption(text="All", value="$__all")

Words = dict[str, Any]


def files() -> dict[Path, str]:
    """The dashboards as JSON."""
    words: Words = yaml.load(WORDS.read_text(), yaml.CSafeLoader)
    boards = ((board, [words["variables"][name] for name in board["variables"]]) for board in words["boards"])
    return {FOLDER / f"{board['uid'].removeprefix('slipway-')}.json": _json(board, found) for board, found in boards}


def _json(board: Words, variables: list[Words]) -> str:
    built = (
        dashboard.Dashboard(board["title"])
        .uid(board["uid"])
        .description(board["says"])
        .tags([TAG])
        .editable()
        .refresh("30s")
        .time("now-3h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(dashboard.DashboardLink("Slipway").type(DashboardLinkType.DASHBOARDS).tags([TAG]).keep_time(True))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in variables:
        built = built.with_variable(_variable(variable))
    number = 0
    for row in board["rows"]:
        number += 1
        built = built.with_row(dashboard.Row(row["title"]).id(number))
        for panel in row["panels"]:
            number += 1
            built = built.with_panel(_panel(panel).id(number))
    return json.dumps(built.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(variable: Words) -> dashboard.QueryVariable:
    built = (
        dashboard.QueryVariable(variable["name"])
        .label(variable["label"])
        .query(variable["query"])
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    return built.multi(True).include_all(True).all_value(".*").current(EVERY) if variable["multi"] else built


def _panel(panel: Words) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .title(panel["title"])
        .description(panel["says"])
        .datasource(SOURCE)
        .unit(panel["unit"])
        .no_value(panel["lacks"])
        .fill_opacity(10)
        .show_points(VisibilityMode.NEVER)
        .legend(common.VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .height(8)
        .span(12)
    )
    if panel.get("stacked"):
        built = built.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for place, query in enumerate(panel["queries"]):
        made = prometheus.Dataquery().expr(query["expr"]).legend_format(query["legend"])
        made = made.ref_id(chr(ord("A") + place)).range()
        built = built.with_target(made)
    return built
