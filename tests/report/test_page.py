"""The report: complete, self-contained, and safe with hostile claims."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.support.chromium import chromium, dump_dom, screenshot
from tests.support.results import make_result

from assay.cli.main import run
from assay.report.heat import SCALE_END, colour
from assay.report.page import MOST_STRIPS, render
from assay.report.texts import escaped, script_json, shown
from assay.report.words import LIMITS, WORDS
from assay.scoring.channels import ChannelResult
from assay.scoring.result import Cause, Reason
from assay.store.result import VerifyResult
from assay.store.results_file import ResultsFile

EVIL = "</script><img src=x onerror=alert(1)>\"'{{rows}}\u202egnp.exe\x00"

needs_chromium = pytest.mark.skipif(
    chromium() is None, reason="no Chromium here; scripts/browser.sh installs Debian's"
)


class Page(HTMLParser):
    """Elements and texts of a page as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._in_script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if not self._in_script:
            self.text += data

    def count(self, tag: str, **attributes: str) -> int:
        return sum(
            name == tag and attributes.items() <= found.items() for name, found in self.elements
        )


def two_executors() -> list[VerifyResult]:
    honest = [make_result(f"h{i}", distance=1e-4 * (i + 1), tokens=20) for i in range(5)]
    cheat = [
        make_result(f"c{i}", verdict="fail", label="cheat", distance=0.08, tokens=20)
        for i in range(5)
    ]
    return [*honest, *cheat]


def test_every_claim_has_a_row_and_a_strip() -> None:
    page = Page(render(two_executors()))
    assert page.count("tr", **{"data-label": "honest", "data-verdict": "pass"}) == 5
    assert page.count("tr", **{"data-label": "cheat", "data-verdict": "fail"}) == 5
    assert page.count("details") == 10
    assert page.count("div", id="plot-claims") == page.count("div", id="plot-tokens") == 1
    assert "mean distance too large" in page.text
    assert WORDS["similarity_below"] in page.text
    for limit in LIMITS:
        assert limit in page.text


def test_nothing_is_loaded_from_anywhere() -> None:
    page = Page(render(two_executors()))
    for tag, attributes in page.elements:
        assert "src" not in attributes, (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#"), (tag, attributes)
    policies = [a["content"] for t, a in page.elements if a.get("http-equiv")]
    assert "default-src 'none'" in (policies[0] or "")


def test_hostile_text_stays_text() -> None:
    reason = Reason(code="similarity_below", message=EVIL)
    evil = make_result(
        EVIL, verdict="fail", label=EVIL, texts=(EVIL,) * 4, reason=reason, distance=0.2
    )
    calm = make_result("calm", verdict="fail", distance=0.2)
    page, plain = Page(render([evil], EVIL)), Page(render([calm], "calm"))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert page.count("img") == 0
    assert "\u202e" not in page.text
    assert "\\u202egnp.exe" in page.text
    assert "{{rows}}" in page.text


def test_script_json_cannot_end_its_element() -> None:
    text = script_json({"a": EVIL, "b": ["<!--", "&amp;"]})
    assert not re.search("[<>&]", text)
    assert json.loads(text) == {"a": EVIL, "b": ["<!--", "&amp;"]}


@pytest.mark.parametrize("character", ["\u202e", "\u2066", "\u200b", "\x1b", "\x00", "\ufeff"])
def test_characters_that_hide_or_reorder_are_spelled_out(character: str) -> None:
    assert shown(f"a{character}b") == f"a\\u{ord(character):04x}b"


def test_ordinary_text_of_any_script_is_left_alone() -> None:
    text = "é 请用 اكتب बारिश 🙂\n\tx"
    assert shown(text) == text
    assert escaped("<a href='\"'>&") == "&lt;a href=&#x27;&quot;&#x27;&gt;&amp;"


def test_long_runs_say_how_many_strips_are_left_out() -> None:
    results = [make_result(f"c{i}") for i in range(MOST_STRIPS + 3)]
    page = Page(render(results))
    assert page.count("details") == MOST_STRIPS
    assert f"3 of {MOST_STRIPS + 3} claims are not drawn" in page.text
    assert page.count("tr", **{"data-label": "honest"}) == MOST_STRIPS + 3


def test_claims_without_a_replay_have_a_row_and_their_reason() -> None:
    down = make_result(
        "down",
        verdict="inconclusive",
        blame="validator",
        reason=Reason(code="replay_unavailable", message="server away"),
    )
    page = Page(render([down, make_result("fine")]))
    assert "server away" in page.text
    assert WORDS["replay_unavailable"] in page.text


def test_positions_without_distance_are_grey_and_the_scale_ends() -> None:
    assert colour(None)[0] == "#d5dae1"
    assert colour(0.0)[0] == "#ffffff"
    assert colour(SCALE_END) == colour(0.5)
    assert colour(SCALE_END)[1] == "#ffffff"


def test_command_joins_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for label in ("honest", "cheat"):
        path = tmp_path / f"{label}.jsonl"
        with ResultsFile(path) as file:
            for result in two_executors():
                if result.label == label:
                    file.append(result)
        files.append(str(path))
    output = tmp_path / "deep" / "report.html"
    assert run(["report", *files, "-o", str(output), "--title", "A <title>"]) == 0
    page = Page(output.read_text(encoding="utf-8"))
    assert page.count("details") == 10
    assert "A <title>" in page.text
    assert "10 claims" in capsys.readouterr().out


def test_command_refuses_files_without_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert run(["report", str(empty)]) == 1
    assert "no results" in capsys.readouterr().err


@needs_chromium
def test_chromium_draws_plots_table_and_strips(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(render(two_executors()), encoding="utf-8")
    dom = dump_dom(file, tmp_path / "profile", fragment="#claim-3")
    page = Page(dom)
    assert page.count("svg", **{"class": "main-svg"}) >= 2
    assert dom.count('class="trace scatter') == 4  # two executors in each of two plots
    assert len(re.findall(r'<path class="point"', dom)) == 10
    assert page.count("tr", **{"data-verdict": "pass"}) == 5
    assert dom.count('class="t"') == 10 * 20
    opened = [a["id"] for t, a in page.elements if t == "details" and "open" in a]
    assert "claim-3" in opened  # the script opens the strip that a link points at


@needs_chromium
def test_chromium_runs_no_script_of_a_claim(tmp_path: Path) -> None:
    attack = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    evil = make_result(attack, label=attack, texts=(attack,) * 4, verdict="fail", distance=0.1)
    file = tmp_path / "report.html"
    file.write_text(render([evil], "calm title"), encoding="utf-8")
    dom = dump_dom(file, tmp_path / "profile")
    assert "<title>calm title</title>" in dom
    assert Page(dom).count("img") == 0


@needs_chromium
def test_chromium_shows_both_top_lists_under_the_pointer(tmp_path: Path) -> None:
    html = render(two_executors())
    [nonce] = set(re.findall(r'<script nonce="([^"]+)"', html))
    point = (
        f'<script nonce="{nonce}">document.querySelectorAll(".t")[3].dispatchEvent('
        'new MouseEvent("mouseover", {bubbles: true}));</script>'
    )
    file = tmp_path / "report.html"
    file.write_text(html.replace("</body>", f"{point}</body>"), encoding="utf-8")
    dom = dump_dom(file, tmp_path / "profile")
    tip = dom[dom.index('id="tip"') :]
    assert "token 3: #103" in tip
    assert tip.count("<tr>") == 3  # the titles and two alternatives
    assert tip.count("-0.500") == 2  # claimed and the validator's own


@needs_chromium
def test_chromium_paints_something(tmp_path: Path) -> None:
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    file.write_text(render(two_executors()), encoding="utf-8")
    screenshot(file, picture, tmp_path / "profile", 1000, 800)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000  # a blank page is 4 kB


def test_channels_of_a_claim_are_a_table_in_its_row() -> None:
    base = make_result("c0", verdict="fail", tokens=20)
    channels = (
        ChannelResult(name="value", outcome="pass", reason="mean distance 0", code="value_agrees"),
        ChannelResult(
            name="choice",
            outcome="fail",
            reason=f"24 of 64 tokens {EVIL}",
            code="choice_mismatch",
            p_value=1e-7,
        ),
        ChannelResult(
            name="account", outcome="not_available", reason="no ids", code="nothing_to_check"
        ),
    )
    verdict = base.verdict.model_copy(
        update={
            "channels": channels,
            "causes": (Cause(name="laundering", message="likely: another model wrote it"),),
            "tokens_needed": 96,
            "p_value": 2e-7,
            "fpr": 1e-3,
            "path": "prefill",
            "calibration": "profile toy fits",
        }
    )
    page = Page(render([base.model_copy(update={"verdict": verdict})]))
    assert page.count("table", **{"class": "channels"}) == 1
    assert page.count("tr", **{"class": "fail"}) == page.count("tr", **{"class": "pass"}) == 1
    for text in ("p 1e-07", "another model wrote it", "about 96 tokens", "profile toy fits"):
        assert text in page.text
    assert page.count("img") == 0
    assert WORDS["choice_mismatch"] in page.text
    assert WORDS["nothing_to_check"] in page.text
    assert "by prefill replay" in page.text


def test_a_verdict_without_channels_has_no_table() -> None:
    assert Page(render(two_executors())).count("table", **{"class": "channels"}) == 0
