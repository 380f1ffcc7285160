"""The channels of one verdict, as a small table in its row."""

from __future__ import annotations

from assay.report.texts import escaped
from assay.scoring.channels import ChannelResult
from assay.scoring.result import Verdict

OUTCOMES = {
    "pass": "pass",
    "fail": "fail",
    "inconclusive": "open",
    "not_available": "not available",
}


def channel_table(verdict: Verdict) -> str:
    """One row for each channel, then where the numbers come from, causes and tokens needed.

    Empty for a verdict without channels (nothing was replayed, or an older assay judged).
    """
    if not verdict.channels:
        return ""
    rows = "".join(_row(channel) for channel in verdict.channels)
    parts = [f'<table class="channels"><tbody>{rows}</tbody></table>']
    parts += [f'<div class="cause">{escaped(cause.message)}</div>' for cause in verdict.causes]
    if verdict.tokens_needed is not None:
        parts.append(
            f'<div class="note">about {verdict.tokens_needed} tokens would decide it, if they go'
            " on like these</div>"
        )
    if verdict.p_value is not None and verdict.fpr is not None:
        parts.append(
            f'<div class="note">p {verdict.p_value:.2g} over all channels; an honest claim fails'
            f" with chance {verdict.fpr:g}</div>"
        )
    where = f"by {verdict.path} replay; " if verdict.path is not None else ""
    parts.append(f'<div class="note">{escaped(where + (verdict.calibration or ""))}</div>')
    return "".join(parts)


def _row(channel: ChannelResult) -> str:
    p = channel.p_value
    p_text = "" if p is None else f"p {p:.2g}"
    if channel.p_low is not None:
        p_text += f", low {channel.p_low:.2g}"
    return (
        f'<tr class="{channel.outcome}"><th>{channel.name}</th>'
        f"<td>{OUTCOMES[channel.outcome]}</td><td>{p_text}</td>"
        f"<td>{escaped(channel.reason)}</td></tr>"
    )
