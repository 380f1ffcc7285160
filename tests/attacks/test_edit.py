"""Edits of honest claims: what changes, and that nothing else does."""

from __future__ import annotations

import pytest
from tests.attacks.made import TOKENS, honest, real_replay

from assay.attacks import edit
from assay.claims.account import Known, check_account
from assay.claims.claim import EngineIdentity
from assay.errors import ClaimError


def failed(claim, known=None):
    known = known or Known(vocab_size=10_000, eos_ids=(2,))
    return {check.name for check in check_account(claim, known) if check.outcome == "fail"}


def test_an_honest_claim_of_these_tests_passes_the_account() -> None:
    assert failed(honest()) == set()


def test_one_token_replaced_by_its_likeliest_rival() -> None:
    claim = honest()
    edited = edit.replace_token(claim)
    at = TOKENS // 2
    assert [i for i in range(TOKENS) if edited.output_ids[i] != claim.output_ids[i]] == [at]
    assert edited.output_ids[at] == claim.output_ids[at] + 1000
    assert (edited.positions[at].token, edited.positions[at].logprob) == (106 + 1000, -1.5)
    assert edited.positions[at].top == claim.positions[at].top
    assert edited.positions[:at] + edited.positions[at + 1 :] == (
        claim.positions[:at] + claim.positions[at + 1 :]
    )
    assert edited.usage == claim.usage
    assert failed(edited) == set()


def test_a_chosen_token_is_replaced_where_asked() -> None:
    assert edit.replace_token(honest(), 3).output_ids[3] == 1103
    with pytest.raises(ClaimError, match="position 12 is not in"):
        edit.replace_token(honest(), TOKENS)


def test_truncation_keeps_its_books_and_is_still_seen() -> None:
    cut = edit.truncate(honest())
    assert len(cut.output_ids) == len(cut.positions) == TOKENS // 2
    assert cut.usage.completion_tokens == TOKENS // 2
    assert cut.usage.total_tokens == 2 + TOKENS // 2
    assert cut.finish_reason == "stop"
    # The last token ends nothing, so the stop is false.
    assert failed(cut) == {"finish_reason"}
    for keep in (0, TOKENS):
        with pytest.raises(ClaimError, match="would cut nothing"):
            edit.truncate(honest(), keep)


def test_inflated_usage_is_all_that_changes() -> None:
    claim = honest()
    more = edit.inflate(claim, 16)
    assert more.usage.completion_tokens == TOKENS + 16
    assert more.usage.total_tokens == claim.usage.total_tokens + 16
    assert more.model_copy(update={"usage": claim.usage}) == claim
    assert "output_count" in failed(more)


def test_a_copied_answer_keeps_the_other_claims_prompt() -> None:
    mine, other = honest(prompt=(1, 2, 3)), honest("honest-0001", first=400)
    copied = edit.copy_answer(mine, other)
    assert copied.prompt == mine.prompt and copied.request == mine.request
    assert copied.output_ids == other.output_ids and copied.positions == other.positions
    assert copied.usage.prompt_tokens == 3
    assert failed(copied) == set()


def test_a_disguise_changes_nothing_but_what_the_engine_is_called() -> None:
    claim, other = honest(), EngineIdentity(dtype="bfloat16")
    disguised = edit.disguise(claim, other)
    assert disguised.engine == other != claim.engine
    assert edit.disguise(disguised, claim.engine) == claim


def test_laundering_takes_the_real_numbers_and_keeps_the_tokens() -> None:
    claim = honest()
    laundered = edit.launder(claim, real_replay(claim))
    assert laundered.output_ids == claim.output_ids
    assert [p.logprob for p in laundered.positions] == [-0.9] * TOKENS
    assert [p.top[0].key for p in laundered.positions] == [5000 + t for t in claim.output_ids]


def test_laundering_lists_as_many_alternatives_as_the_claim_and_the_chosen_one_among_them() -> None:
    claim = honest()
    wide = real_replay(claim, width=4)
    # Two alternatives more likely than the chosen one stand before it.
    crowded = wide.model_copy(
        update={
            "positions": tuple(
                p.model_copy(update={"top": (p.top[0], p.top[2], p.top[3], p.top[1])})
                for p in wide.positions
            )
        }
    )
    laundered = edit.launder(claim, crowded)
    assert {len(p.top) for p in laundered.positions} == {3}
    assert all(p.token in {e.key for e in p.top} for p in laundered.positions)


def test_a_replay_of_other_tokens_cannot_launder() -> None:
    with pytest.raises(ClaimError, match="not of this claim's tokens"):
        edit.launder(honest(), real_replay(honest(first=400)))


def test_claims_without_evidence_cannot_be_edited() -> None:
    bare = honest().model_copy(update={"positions": None})
    for change in (edit.replace_token, edit.truncate, lambda c: edit.launder(c, real_replay(c))):
        with pytest.raises(ClaimError, match="no token ids or no positions"):
            change(bare)
