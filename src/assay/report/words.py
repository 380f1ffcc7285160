"""Reasons in words, and what the check cannot tell."""

from __future__ import annotations

WORDS: dict[str, str] = {
    # Decided by the comparison.
    "similarity_below": "The log probabilities differ more than an honest engine's do: other or"
    " rounded weights, another model, or another prompt.",
    "different_tokens": "The replay contains other tokens than the claim at some position.",
    "different_length": "The claim has more tokens than the replay.",
    "prompt_mismatch": "Claim and validator do not have the same prompt tokens: another system"
    " prompt, template or tokenizer. The distributions cannot be compared.",
    "spelling_mismatch": "One side names tokens by id and the other by text; they cannot be"
    " compared.",
    "one_sided_evidence": "Only one side has log probabilities. An executor that leaves them out"
    " hides what it ran.",
    "not_finite": "A log probability is no number.",
    "not_a_distribution": "The claimed probabilities of a position do not fit together.",
    "not_constant": "The claimed numbers repeat in a way no engine's do.",
    "mode_inferred": "The distances are large, but the server only guessed the log probability"
    " mode; name it and replay again.",
    "flat_distribution": "The validator's own distributions are flat here: many tokens are about"
    " as likely. Honest engines differ most at such places.",
    "sampler_support": "The claim chose tokens that its own sampling parameters forbid.",
    "ceiling": "Too many single tokens are far off, even if the mean is not.",
    "mode_mismatch": "Claim and replay are in different log probability modes; there is no honest"
    " conversion between them.",
    "k_mismatch": "Claim and replay list different numbers of alternatives.",
    "malformed": "The claim holds something no engine produces, such as an id outside the"
    " vocabulary.",
    "inflated": "The claim bills more tokens than it contains.",
    "position_gap": "The log probabilities do not cover all tokens the claim counts.",
    "out_of_vocabulary": "The claim contains an id that the model does not have.",
    "over_max_tokens": "The answer is longer than the request allowed.",
    "false_finish_reason": "The claim gives a reason for its end that its tokens contradict.",
    "tokens_after_end": "The claim goes on after the model's end token.",
    "chosen_seed": "The seed does not follow from the beacon: somebody chose it.",
    "prompt_count": "The claim bills another number of prompt tokens than it shows.",
    "claim_rejected_by_engine": "The validator's engine refused the claimed tokens: no engine"
    " produces them.",
    "replay_unavailable": "The validator could not replay the claim; says nothing about the"
    " executor.",
    "no_evidence": "There is nothing to compare: no log probabilities, or only padding.",
    "too_short_to_tell": "Too few tokens: an honest and a cheating executor look alike at this"
    " length.",
    "value_too_far": "Honest claims of the profile hardly ever lie so far from the validator's"
    " numbers: other or rounded weights, another model, or another prompt.",
    "value_too_close": "The numbers are closer to the validator's own than those of another engine"
    " can be: computed afterwards on such an engine, or copied.",
    "unusual": "Less likely than one honest claim in a hundred, and not unlikely enough for the"
    " stated rate.",
    "choice_contradiction": "By the claim's own log probabilities and the request's seed other"
    " tokens were drawn. No hardware explains that: another model or another seed wrote the text.",
    "choice_outlier": "One token loses to another by far: it was put there by hand.",
    "choice_mismatch": "Many tokens are not those that the validator's engine draws with the same"
    " seed: other weights, another seed or other sampling parameters.",
    "choice_unlikely": "Honest claims of the profile hardly ever differ so much from what the"
    " validator's engine draws with the same seed.",
    "channel_required": "A channel that has to pass for this validator could not look, or could not"
    " decide.",
    "choice_unclear": "More tokens than usual are not the ones the seed draws, and too few to be"
    " sure of it.",
    "choice_agrees": "The tokens are those that the request's seed draws.",
    "value_agrees": "The numbers are those of the validator's engine, within what is allowed.",
    "account_holds": "What the claim says about itself holds.",
    "nothing_to_check": "The claim says nothing about itself that could be checked.",
    "assumption": "Something nobody stated decides whether the tokens follow from the seed; it never"
    " counts against the claim.",
    "unseeded": "Without a seed nobody can draw the tokens again.",
    "other_tape": "The engines turn a seed into draws in different ways.",
    "other_device": "The claim's engine drew with a generator of another kind of device.",
    "sequential_generator": "The tokens were drawn from a generator that only a decode replay on the"
    " same kind of device repeats.",
    "several_choices": "Several answers were drawn, each with a seed of its own.",
    "shaped_distribution": "The request changes the distribution in a way that one forward pass"
    " cannot see.",
    "temperature_not_named": "The request leaves the temperature to the server.",
    "mode_unknown": "Nobody says in which log probability mode the replay is.",
    # Decided before or instead of a comparison.
    "no_prompt_ids": "The claim carries no prompt token ids, and strict mode does not guess.",
    "no_token_ids": "The claim spells its tokens as text; ids cannot be recovered with certainty.",
    "no_prompt": "The claim carries no prompt at all.",
    "model_not_served": "The validator serves another model than the claim is about.",
    "context_too_small": "The validator's context is too small for the claim.",
    "k_over_limit": "The validator's server returns fewer alternatives than the claim has.",
    "trace_too_long": "The claim is longer than one replay can force.",
    "not_replayable": "The claim was made in a way that a replay cannot repeat.",
    "replay_incomplete": "The validator's replay stopped early.",
    "request_refused": "The validator's server cannot run this request; says nothing about the"
    " executor.",
    "replay_failed": "The replay failed; says nothing about the executor.",
    "validator_error": "The validator's server failed; says nothing about the executor.",
    "validator_busy": "The validator's server was busy; try again.",
    "validator_timeout": "The validator's server gave no answer in time; try again.",
    "validator_unreachable": "The validator's server could not be reached; try again.",
    "validator_unauthorised": "The validator's server refused the key.",
    "validator_unusable": "The validator's server cannot force tokens.",
    # Notes: what the replay had to do.
    "prompt_rerendered": "The validator rendered the prompt itself; it cannot know whether the"
    " executor saw the same one.",
    "prompt_from_ids": "The claim's own prompt ids were run; the prompt itself is not checked.",
    "retokenised": "The answer's text was tokenised again; some positions cannot be trusted.",
    "mode_not_named": "The claim names no log probability mode, so the server inferred it.",
    "dropped_fields": "Fields of the request that are no part of a replay were left out.",
    "shorter_than_min_tokens": "The answer is shorter than the request's min_tokens.",
}

LIMITS: tuple[str, ...] = (
    "A pass is about these answers, not about the server: an executor may answer honestly only"
    " when it expects to be checked.",
    "A cheap model that writes the text and a real model that only scores it afterwards gives the"
    " real model's log probabilities. Distances cannot see that; the choice channel can, where the"
    " request had a seed or was greedy. Where it says not available, nothing here can.",
    "The request is taken as the claim states it. If the executor wrote the claim file, compare its"
    " prompts and sampling parameters with the ones you sent.",
    "Int8 weights move the numbers so little that a thousand tokens or more are needed. A short"
    " pass does not exclude them.",
    "Another GPU, another attention kernel or another KV cache dtype also moves the numbers. Where"
    " executor and validator differ in these, the threshold must have been measured for the pair.",
    "Nothing here says where the server runs, who operates it, or whether it keeps your prompts.",
)


def explain(code: str) -> str | None:
    """A sentence for a reason or note code; ``None`` for one this version does not know."""
    return WORDS.get(code)
