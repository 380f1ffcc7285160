"""The two plots: means of claims, and all tokens, by executor."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from assay.report.texts import shown
from assay.store.result import VerifyResult

# Okabe and Ito's palette, told apart with any kind of colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
FLOOR = 1e-6
"""Distances below it are drawn at it: the axis is logarithmic and exact zeros are common."""
MOST = 0.5
"""The largest distance there is."""
BINS = 48


def figures(groups: Mapping[str, Sequence[VerifyResult]]) -> dict[str, Any]:
    """Plotly figures as plain objects, keyed by the id of their element. ``groups``: by label."""
    return {
        "plot-claims": _plain(_claims(groups)),
        "plot-tokens": _plain(_tokens(groups)),
    }


def _claims(groups: Mapping[str, Sequence[VerifyResult]]) -> go.Figure:
    figure = go.Figure()
    symbols = {"pass": "circle", "fail": "x", "inconclusive": "diamond-open"}
    for index, (label, results) in enumerate(groups.items()):
        known = [result for result in results if _finite(result)]
        figure.add_trace(
            go.Scatter(
                x=[max(_mean(result), FLOOR) for result in known],
                y=[_lane(index, place, len(known)) for place in range(len(known))],
                mode="markers",
                name=_name(label),
                marker={
                    "color": COLOURS[index % len(COLOURS)],
                    "size": 10,
                    "symbol": [symbols[result.verdict.verdict] for result in known],
                    "line": {"width": 1.5},
                },
                text=[f"{_name(result.claim.id)}: {result.verdict.verdict}" for result in known],
                hovertemplate="%{text}<br>mean distance %{x:.5f}<extra></extra>",
            )
        )
    for limit, name in _limits(groups):
        figure.add_vline(x=limit, line={"color": "#5b6675", "dash": "dot", "width": 1.5})
        figure.add_annotation(
            x=float(np.log10(limit)), y=1.0, yref="paper", yanchor="bottom", text=name,
            showarrow=False, font={"size": 11, "color": "#5b6675"},
            xanchor="right" if name.startswith("pass") else "left",
        )  # fmt: skip
    names = [_name(label) for label in groups]
    figure.update_layout(
        _layout("mean distance of a claim"),
        yaxis={
            "tickvals": list(range(len(names))),
            "ticktext": names,
            "range": [-0.6, max(len(names), 1) - 0.4],
            "zeroline": False,
            "showgrid": False,
        },
        showlegend=False,
    )
    return figure


def _tokens(groups: Mapping[str, Sequence[VerifyResult]]) -> go.Figure:
    figure = go.Figure()
    edges = np.logspace(np.log10(FLOOR), np.log10(MOST), BINS + 1)
    for index, (label, results) in enumerate(groups.items()):
        values = np.array([d for result in results for d in _finite(result)])
        counts, _ = np.histogram(np.clip(values, FLOOR, MOST), bins=edges)
        share = counts / max(len(values), 1)
        colour = COLOURS[index % len(COLOURS)]
        figure.add_trace(
            go.Scatter(
                x=np.sqrt(edges[:-1] * edges[1:]).tolist(),
                y=share.tolist(),
                mode="lines",
                name=f"{_name(label)} ({len(values)} tokens)",
                line={"color": colour, "width": 2, "shape": "hvh"},
                fill="tozeroy",
                fillcolor=_faint(colour),
                hovertemplate="distance %{x:.2e}<br>%{y:.1%} of tokens<extra></extra>",
            )
        )
    figure.update_layout(
        _layout("distance of a token"),
        yaxis={"title": {"text": "share of tokens"}, "tickformat": ".0%", "rangemode": "tozero"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )
    return figure


def _layout(title: str) -> dict[str, Any]:
    ticks = {1e-6: "≤10⁻⁶", 1e-5: "10⁻⁵", 1e-4: "10⁻⁴", 1e-3: "0.001", 1e-2: "0.01", 1e-1: "0.1"}
    return {
        "template": "plotly_white",
        "margin": {"l": 60, "r": 16, "t": 36, "b": 48},
        "font": {"size": 13, "color": "#1b2330"},
        "xaxis": {
            "type": "log",
            "title": {"text": title},
            "range": [float(np.log10(FLOOR)) - 0.2, float(np.log10(MOST)) + 0.1],
            "tickvals": list(ticks),
            "ticktext": list(ticks.values()),
            "tickangle": 0,
        },
    }


def _finite(result: VerifyResult) -> list[float]:
    return [d for d in result.verdict.distances if d is not None]


def _mean(result: VerifyResult) -> float:
    """The mean that the verdict was decided by, where it was decided by one."""
    mean = result.verdict.mean_distance
    return float(np.mean(_finite(result))) if mean is None else mean


def _limits(groups: Mapping[str, Sequence[VerifyResult]]) -> list[tuple[float, str]]:
    """The limits that most claims were held against; flat ones have a wider fail limit."""
    verdicts = [result.verdict for results in groups.values() for result in results]
    lines = []
    for name, field in (("pass below ", "pass_limit"), (" fail above", "fail_limit")):
        values = Counter(value for v in verdicts if (value := getattr(v, field)) is not None)
        if values:
            lines.append((values.most_common(1)[0][0], name))
    return lines


def _lane(index: int, place: int, count: int) -> float:
    """Spread the claims of one executor over its lane, so that equal ones stay visible."""
    return index + (0.0 if count < 2 else 0.5 * (place / (count - 1) - 0.5))


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _name(text: str) -> str:
    """Plotly reads a little HTML in labels; a claim's text must not be read."""
    plain = shown(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain if len(plain) <= 40 else plain[:39] + "…"


def _plain(figure: go.Figure) -> Any:
    return json.loads(figure.to_json())
