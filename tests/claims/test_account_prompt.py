"""The prompt of a claim: digest, and the rendering of the same template."""

from __future__ import annotations

from typing import Any

import pytest
from tests.claims.account_claims import checks, claim, outcome

from assay.claims.account import Known, with_replay
from assay.claims.account.prompt import difference
from assay.claims.claim import EngineIdentity, Prompt, Replay
from assay.claims.digest import prompt_digest

USER = ({"role": "user", "content": "hi"},)
RENDERED = tuple(range(10, 50))
HIDDEN = (*range(10, 12), *range(900, 920), *range(12, 50))
"""A hidden message of 20 tokens behind the first two."""
DATED = (*range(10, 20), 900, 901, 902, *range(22, 50))
"""Two tokens of a date became three."""


def render(
    ids: tuple[int, ...] | None, ours: tuple[int, ...] | None, *, same: bool
) -> tuple[str, str]:
    ran = claim(prompt=Prompt(token_ids=ids, messages=USER, source="response"))
    check = checks(ran, Known(rendered_prompt_ids=ours, same_template=same))["prompt_render"]
    assert check.position is None  # it is no position of the output
    return check.outcome, check.reason


def test_a_hidden_system_prompt_shows_where_the_template_is_the_same() -> None:
    assert render(RENDERED, RENDERED, same=False)[0] == "pass"
    assert render(RENDERED, RENDERED, same=True)[0] == "pass"
    found, reason = render(HIDDEN, RENDERED, same=True)
    assert found == "fail"
    assert "prompt token 2" in reason


def test_another_template_or_a_date_convicts_nobody() -> None:
    assert render(HIDDEN, RENDERED, same=False)[0] == "not_available"
    assert render(DATED, RENDERED, same=True)[0] == "not_available"


def test_a_long_replacement_is_no_date() -> None:
    other = (*RENDERED[:5], *range(900, 920), *RENDERED[25:])
    assert render(other, RENDERED, same=True)[0] == "fail"


@pytest.mark.parametrize("ours", [None, ()])
def test_without_a_rendering_there_is_no_outcome(ours: tuple[int, ...] | None) -> None:
    assert render(RENDERED, None, same=True)[0] == "not_available"
    assert render(None, RENDERED, same=True)[0] == "not_available"
    told = Known(missing={"rendered_prompt_ids": "the server did not answer"})
    assert checks(claim(), told)["prompt_render"].reason == "the server did not answer"


@pytest.mark.parametrize(
    ("ids", "ours", "found"),
    [
        ((1, 2, 3), (1, 2, 3), (3, 0, 0)),
        ((1, 9, 3), (1, 2, 3), (1, 1, 1)),
        ((1, 2, 2, 3), (1, 2, 3), (2, 1, 0)),
        ((1,), (1, 2, 3), (1, 0, 2)),
        ((), (1, 2), (0, 0, 2)),
        ((4, 5), (1, 2, 3), (0, 2, 3)),
    ],
)
def test_difference(ids: tuple[int, ...], ours: tuple[int, ...], found: tuple[int, ...]) -> None:
    assert difference(ids, ours) == found


@pytest.mark.parametrize(
    ("ids", "digest", "ours", "expected"),
    [
        ((1, 2), prompt_digest((1, 2)), None, "pass"),
        ((1, 2), (prompt_digest((1, 2)) or "").upper(), None, "pass"),
        ((1, 2), prompt_digest((1, 3)), None, "fail"),
        ((1, 2), "", None, "fail"),
        ((1, 2), None, None, "not_available"),
        (None, prompt_digest((1, 2)), (1, 2), "pass"),
        (None, prompt_digest((1, 2)), (1, 3), "not_available"),
        (None, prompt_digest((1, 2)), None, "not_available"),
    ],
)
def test_the_digest_binds_the_prompt(
    ids: tuple[int, ...] | None,
    digest: str | None,
    ours: tuple[int, ...] | None,
    expected: str,
) -> None:
    bound = claim(prompt=Prompt(token_ids=ids, digest=digest))
    assert outcome("prompt_digest", bound, Known(rendered_prompt_ids=ours)) == expected


def seen(
    request: dict[str, Any] | None = None,
    *,
    theirs: str | None = "t",
    ours: str | None = "t",
    messages: tuple[dict[str, Any], ...] | None = USER,
    path: Any = "decode",
) -> Known:
    asked = claim(
        request,
        prompt=Prompt(token_ids=(1, 2), messages=messages),
        engine=EngineIdentity(template_digest=theirs),
    )
    replay = Replay(
        id="r",
        path=path,
        prompt_token_ids=(1, 2),
        engine=EngineIdentity(template_digest=ours),
    )
    return with_replay(Known(), asked, replay)


def test_equal_template_digests_say_that_the_template_is_the_same() -> None:
    assert seen().same_template
    assert not seen(theirs=None).same_template
    assert not seen(theirs=None, ours=None).same_template
    assert not seen(ours="u").same_template


@pytest.mark.parametrize(
    "request_",
    [{"tools": [{"type": "function"}]}, {"documents": [{}]}, {"reasoning_effort": "low"}],
    ids=str,
)
def test_what_the_fixed_conversation_does_not_show_is_not_taken_for_the_same(
    request_: dict[str, Any],
) -> None:
    assert not seen(request_).same_template
    picture = ({"role": "user", "content": [{"type": "image_url"}]},)
    assert not seen(messages=picture).same_template
    assert not seen(messages=({"role": "tool", "content": "4"},)).same_template


def test_a_rendering_is_known_from_a_replay_that_rendered() -> None:
    assert seen().rendered_prompt_ids == (1, 2)
    assert seen(path="prefill").rendered_prompt_ids == (1, 2)
    assert seen(path="file").rendered_prompt_ids is None
    assert seen(messages=None).rendered_prompt_ids is None
