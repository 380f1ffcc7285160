"""Results as one HTML file that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Sequence
from importlib import resources

from plotly.offline import get_plotlyjs

from assay import __version__
from assay.report.channels import channel_table
from assay.report.figures import figures
from assay.report.heat import gradient, question, strip_data, strip_html
from assay.report.texts import escaped, script_json
from assay.report.words import LIMITS, explain
from assay.scoring.result import Verdict
from assay.store.result import VerifyResult

MOST_STRIPS = 60
"""Heat strips in one report, of the worst claims: each is hundreds of elements."""
_WORST_FIRST = {"fail": 0, "inconclusive": 1, "pass": 2}
_VERDICTS = ("pass", "fail", "inconclusive")


def render(results: Sequence[VerifyResult], title: str = "assay report") -> str:
    """The report of ``results`` as HTML text. The order of the results is kept in the table."""
    groups: dict[str, list[VerifyResult]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    strips = _with_strips(results)
    keys = {id(result): f"claim-{index}" for index, result in enumerate(results)}
    has_strip = {id(result) for result in strips}
    data = {
        "figures": figures(groups),
        "strips": {keys[id(result)]: strip_data(result) for result in strips},
    }
    return _fill(
        _file("page.html"),
        {
            "nonce": secrets.token_urlsafe(16),
            "title": escaped(title),
            "style": _file("page.css"),
            "lead": _lead(results),
            "cards": "".join(_card(label, group) for label, group in groups.items()),
            "filters": _filters(list(groups)),
            "rows": "".join(
                _row(result, keys[id(result)] if id(result) in has_strip else None)
                for result in results
            ),
            "gradient": gradient(),
            "strips": _strips(strips, keys, len(results)),
            "glossary": _glossary(results),
            "limits": "".join(f"<li>{escaped(limit)}</li>" for limit in LIMITS),
            "validators": _validators(results),
            "footer": f"made by assay {escaped(__version__)}",
            "data": script_json(data),
            "plotly": get_plotlyjs(),
            "script": _file("page.js"),
        },
    )


def _file(name: str) -> str:
    return resources.files("assay.report").joinpath(name).read_text(encoding="utf-8")


def _fill(template: str, values: dict[str, str]) -> str:
    """One pass: a value that contains ``{{rows}}`` stays as it is."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match.group(1)], template)


def _lead(results: Sequence[VerifyResult]) -> str:
    tokens = sum(result.verdict.positions for result in results)
    counts = Counter(result.verdict.verdict for result in results)
    return escaped(
        f"{len(results)} claims with {tokens} compared tokens were replayed on the validator's own"
        f" engine: {counts['pass']} pass, {counts['fail']} fail,"
        f" {counts['inconclusive']} inconclusive."
    )


def _card(label: str, group: Sequence[VerifyResult]) -> str:
    counts = Counter[str](result.verdict.verdict for result in group)
    parts = "".join(
        f'<span class="{name if counts[name] else "zero"}"><b>{counts[name]}</b>{name}</span>'
        for name in _VERDICTS
    )
    return f'<div class="card"><h3>{escaped(label)}</h3><div class="tally">{parts}</div></div>'


def _filters(labels: Sequence[str]) -> str:
    choices = [("", "all"), *((label, label) for label in labels if len(labels) > 1)]
    choices += [(name, name) for name in _VERDICTS]
    buttons = "".join(
        f'<button type="button" data-filter="{escaped(value)}"'
        f' aria-pressed="{"true" if value == "" else "false"}">{escaped(text)}</button>'
        for value, text in choices
    )
    return f'<div class="filters">{buttons}</div>'


def _row(result: VerifyResult, strip: str | None) -> str:
    verdict = result.verdict
    name = escaped(result.claim.id)
    link = name if strip is None else f'<a href="#{strip}">{name}</a>'
    reasons = "".join(
        f"<div><b>{escaped(reason.code)}</b> {escaped(reason.message)}</div>"
        for reason in verdict.reasons
    )
    notes = "".join(
        f'<div class="note">{escaped(note.code)}: {escaped(note.message)}</div>'
        for note in result.notes
    )
    return (
        f'<tr data-label="{escaped(result.label)}" data-verdict="{verdict.verdict}">'
        f'<td class="label">{escaped(result.label)}</td><td class="id" title="{name}">{link}'
        f'<div class="asked" dir="auto">{escaped(question(result.claim))}</div></td>'
        f'<td><span class="badge {verdict.verdict}">{verdict.verdict}</span></td>'
        f'<td class="num">{verdict.positions}</td>'
        f'<td class="num" title="{_limits(verdict)}">{_number(verdict.mean_distance, ".4f")}</td>'
        f'<td class="num">{_number(verdict.similarity, ".4f")}</td>'
        f'<td class="num">{_number(verdict.top1_agreement, ".1%")}</td>'
        f'<td class="why">{reasons}{channel_table(verdict)}{notes}</td></tr>'
    )


def _limits(verdict: Verdict) -> str:
    """What the mean distance was held against, for the tooltip of the cell."""
    if verdict.pass_limit is None or verdict.fail_limit is None:
        return ""
    return escaped(
        f"over {verdict.informative_positions} informative positions; pass limit"
        f" {verdict.pass_limit:.4f}, fail limit {verdict.fail_limit:.4f} ({verdict.limits_source})"
    )


def _number(value: float | None, spec: str) -> str:
    return "–" if value is None else format(value, spec)


def _with_strips(results: Sequence[VerifyResult]) -> list[VerifyResult]:
    """The claims that get a heat strip: those with positions, the worst where there are too many,
    in the order of the table."""
    drawable = [result for result in results if result.claim.positions]
    worst = sorted(
        drawable,
        key=lambda result: (
            _WORST_FIRST[result.verdict.verdict],
            -(result.verdict.mean_distance or 0.0),
        ),
    )
    chosen = {id(result) for result in worst[:MOST_STRIPS]}
    return [result for result in drawable if id(result) in chosen]


def _strips(strips: Sequence[VerifyResult], keys: dict[int, str], total: int) -> str:
    """The first of each executor is open: the difference is what one looks for."""
    seen: set[str] = set()
    parts = []
    for result in strips:
        parts.append(strip_html(result, keys[id(result)], is_open=result.label not in seen))
        seen.add(result.label)
    if len(strips) < total:
        parts.append(
            f"<p>{total - len(strips)} of {total} claims are not drawn: without log probabilities,"
            f" or beyond the first {MOST_STRIPS}.</p>"
        )
    return "".join(parts)


def _glossary(results: Sequence[VerifyResult]) -> str:
    codes = {reason.code for result in results for reason in result.verdict.reasons}
    codes |= {note.code for result in results for note in result.notes}
    codes |= {
        channel.code
        for result in results
        for channel in result.verdict.channels
        if channel.outcome != "pass"
    }
    known = [(code, explain(code)) for code in sorted(codes)]
    entries = [f"<dt>{escaped(code)}</dt><dd>{escaped(text)}</dd>" for code, text in known if text]
    return "".join(entries) or "<dd>No reason was given: every claim passed without remark.</dd>"


def _validators(results: Sequence[VerifyResult]) -> str:
    """One row for each server that judged, as it described itself."""
    seen: dict[str, VerifyResult] = {}
    for result in results:
        if result.replay is not None:
            seen.setdefault(result.server_digest, result)
    fields = (
        "model",
        "engine_version",
        "runner",
        "dtype",
        "kv_cache_dtype",
        "attention_backend",
        "logprobs_mode",
        "plugin_version",
    )
    head = "".join(f"<th>{field.replace('_', ' ')}</th>" for field in fields)
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{escaped(getattr(result.replay.engine, field) or '–')}</td>" for field in fields
        )
        + "</tr>"
        for result in seen.values()
        if result.replay is not None
    )
    return f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
