"""Generated request bodies against a running server: valid ones, ours bent, anything at all.

As a test: ``test_fuzz.py``. By hand, against any server with the plugin and a small model::

    python -m tests.engine.fuzz --server http://127.0.0.1:8000 --count 5000
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.engine.answers import Body
from tests.engine.talk import CHAT, TEXT

VOCAB = 512  # of the tiny model; with another one more bodies are simply valid
MAX_NEW = 6
# Short on purpose: a stock V1 CPU engine dies when a seeded request's prompt is chunked.
WORDS = st.text(max_size=12)
NUMBERS = st.one_of(
    st.integers(-3, VOCAB + 3),
    st.sampled_from([-1, 0, 1, VOCAB - 1, VOCAB, 2**31, 2**63, 2**64, -(2**63), 10**40]),
    st.floats(allow_nan=False, allow_infinity=False),
)
ODD_TEXT = st.one_of(
    WORDS,
    st.sampled_from(
        ["token_id:", "token_id:-1", "token_id:٣", "1_0", " 7", "+7", "0x10", "1e3", "\ud800", "\0",
         "𝟕", "9" * 400, "token_id:token_id:5", "null", "", "EMPTY"]
    ),
)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, ODD_TEXT)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def nested(depth: int) -> Any:
    """``[[[...]]]``; JSON this deep is still parsed, deeper is cut off by the parser."""
    value: Any = 17
    for _ in range(depth):
        value = [value]
    return value


DEEP = st.sampled_from([3, 60, 400]).map(nested)
GOOD_TOKEN = st.one_of(
    st.integers(5, VOCAB - 1).map("token_id:{}".format),
    st.integers(5, VOCAB - 1).map(str),
    st.integers(5, VOCAB - 1),
)
BAD_TOKEN = st.one_of(SCALARS, ANYTHING, DEEP)
GOOD_TOP = st.lists(GOOD_TOKEN, max_size=5)
ENTRY = st.fixed_dictionaries({"token": GOOD_TOKEN}, optional={"top_tokens": GOOD_TOP})
BENT_ENTRY = st.one_of(
    st.fixed_dictionaries({"token": BAD_TOKEN}, optional={"top_tokens": ANYTHING}),
    st.fixed_dictionaries({"token": GOOD_TOKEN, "top_tokens": st.lists(BAD_TOKEN, max_size=70)}),
    st.dictionaries(st.sampled_from(["token", "tokens", "top_tokens", "id"]), ANYTHING),
    ANYTHING,
)
GOOD_TRACE = st.fixed_dictionaries({"tokens": st.lists(ENTRY, min_size=1, max_size=MAX_NEW)})
BENT_TRACE = st.one_of(
    st.fixed_dictionaries(
        {"tokens": st.lists(st.one_of(ENTRY, BENT_ENTRY), max_size=5)},
        optional={"allow_text": st.one_of(st.booleans(), ANYTHING), "more": ANYTHING},
    ),
    st.fixed_dictionaries({"tokens": ANYTHING}),
    st.sampled_from([512, 600, 33_000]).map(lambda n: {"tokens": [{"token": "17"}] * n}),
    ANYTHING,
    DEEP,
)
MODES = st.sampled_from(["raw_logprobs", "processed_logprobs"])
BENT_MODE = st.one_of(st.sampled_from(["raw_logits", "processed", "RAW_LOGPROBS"]), ANYTHING)

OURS = st.one_of(
    st.fixed_dictionaries({"enforced_tokens": GOOD_TRACE}, optional={"logprobs_mode": MODES}),
    st.fixed_dictionaries({"enforced_tokens": BENT_TRACE}, optional={"logprobs_mode": MODES}),
    st.fixed_dictionaries({"enforced_tokens": GOOD_TRACE, "logprobs_mode": BENT_MODE}),
    st.fixed_dictionaries({"enforced_str": WORDS}, optional={"logprobs_mode": MODES}),
    st.fixed_dictionaries({"enforced_str": st.one_of(ODD_TEXT, ANYTHING, DEEP)}),
    st.fixed_dictionaries({"enforced_tokens": GOOD_TRACE, "enforced_str": WORDS}),
    st.fixed_dictionaries({"logprobs_mode": st.one_of(MODES, BENT_MODE)}),
    st.fixed_dictionaries(
        {"vllm_xargs": st.dictionaries(
            st.sampled_from(["assay_trace", "assay_mode", "assay_key", "mine"]), ANYTHING)}
    ),
    st.fixed_dictionaries({"vllm_xargs": ANYTHING, "enforced_tokens": GOOD_TRACE}),
)  # fmt: skip
# Anything but a number that would be served, slowly: hundreds of tokens, hundreds of answers.
NOT_MANY = st.sampled_from([None, True, "6", "six", 1.5, -1, 2**31, 2**64, [2], {}])
COUNTS = st.one_of(st.integers(-2, 22), ANYTHING)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.one_of(st.floats(0, 2), ANYTHING),
        "top_p": st.one_of(st.floats(0.01, 1), ANYTHING),
        "top_k": COUNTS,
        "min_p": st.one_of(st.floats(0, 1), ANYTHING),
        "seed": st.one_of(st.integers(0, 2**40), ANYTHING),
        "n": st.one_of(st.sampled_from([1, 2]), NOT_MANY),
        "stop": st.one_of(WORDS, st.lists(WORDS, max_size=3), ANYTHING),
        "stop_token_ids": st.one_of(st.lists(st.integers(0, VOCAB - 1), max_size=3), ANYTHING),
        "min_tokens": st.one_of(st.integers(0, MAX_NEW), ANYTHING),
        "ignore_eos": st.booleans(),
        "stream": st.booleans(),
        "echo": st.booleans(),
        "prompt_logprobs": COUNTS,
        "logit_bias": st.one_of(
            st.dictionaries(st.integers(-1, VOCAB + 1).map(str), st.floats(-5, 5), max_size=3),
            ANYTHING,
        ),
        "repetition_penalty": st.one_of(st.floats(0.5, 2), ANYTHING),
        "frequency_penalty": st.one_of(st.floats(-2, 2), ANYTHING),
        "use_beam_search": st.booleans(),
        "max_completion_tokens": st.one_of(st.integers(0, MAX_NEW), NOT_MANY),
        "return_token_ids": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
        "no_such_field": ANYTHING,
    },
)
CHAT_BASE = st.fixed_dictionaries(
    {
        "model": st.just("model"),
        "messages": st.lists(
            st.fixed_dictionaries({"role": st.just("user"), "content": WORDS}),
            min_size=1,
            max_size=2,
        ),
        "max_tokens": st.integers(1, MAX_NEW),
    },
    optional={"logprobs": st.one_of(st.just(True), SCALARS), "top_logprobs": COUNTS},
)
TEXT_BASE = st.fixed_dictionaries(
    {
        "model": st.just("model"),
        "prompt": st.one_of(WORDS, st.lists(st.integers(0, VOCAB), min_size=1, max_size=8)),
        "max_tokens": st.integers(1, MAX_NEW),
    },
    optional={"logprobs": COUNTS},
)


def merged(base: Body, sampling: Body, ours: Body) -> Body:
    return {**base, **sampling, **ours}


BODIES = st.one_of(
    st.tuples(st.just(CHAT), st.builds(merged, CHAT_BASE, SETTINGS, OURS)),
    st.tuples(st.just(TEXT), st.builds(merged, TEXT_BASE, SETTINGS, OURS)),
    st.tuples(st.just(CHAT), st.builds(merged, CHAT_BASE, st.just({}), OURS)),
    st.tuples(st.just(TEXT), st.builds(merged, TEXT_BASE, st.just({}), OURS)),
)


def run(http: httpx.Client, count: int, first_seed: int = 2) -> Counter[int]:
    """Send ``count`` generated bodies; how often each status came back.

    Raises AssertionError on the first status of 500 or more and on a stream that breaks off, with
    the body shrunk to a small one.
    """
    statuses: Counter[int] = Counter()

    @seed(first_seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(BODIES)
    def sends(case: tuple[str, Body]) -> None:
        path, body = case
        status, content = post(http, path, body)
        statuses[status] += 1
        assert status < 500, (status, path, body, content[:400])
        if status == 200:
            assert b'"code":500' not in content, (path, body, content[:400])
        else:
            assert b'"message"' in content, (path, body, content[:400])

    sends()
    return statuses


def post(http: httpx.Client, path: str, body: Body) -> tuple[int, bytes]:
    response = http.post(path, content=spelled(body), headers={"content-type": "application/json"})
    return response.status_code, response.content


def spelled(body: Body) -> bytes:
    """JSON in ASCII: half characters travel as escapes, as a hostile client would send them."""
    return json.dumps(body, ensure_ascii=True).encode()


def main(arguments: list[str], say: Callable[[str], object] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.fuzz", description=__doc__)
    parser.add_argument("--server", required=True, help="URL of the server")
    parser.add_argument("--count", type=int, default=5000, help="bodies to send")
    parser.add_argument("--seed", type=int, default=2, help="another seed, other bodies")
    given_arguments = parser.parse_args(arguments)
    with httpx.Client(base_url=given_arguments.server, timeout=120.0, trust_env=False) as http:
        statuses = run(http, given_arguments.count, given_arguments.seed)
    say(f"{statuses.total()} bodies: {dict(sorted(statuses.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
