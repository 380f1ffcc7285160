"""The server class neither leaks nor hides a failure, and each runner is the one asked for."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.support import specs
from tests.support.server import Server, ServerError, ServerSpec, client, free_port
from tests.support.triton_twins import load_twins

# A real HTTP server with one child process, as an API server with its engine core is. With
# "deaf" both ignore SIGINT and SIGTERM.
LITTLE_SERVER = textwrap.dedent(
    """
    import http.server, signal, subprocess, sys
    port, deaf = int(sys.argv[sys.argv.index("--port") + 1]), "deaf" in sys.argv
    code = "import signal, time; " + (
        "signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN); " if deaf else ""
    ) + "time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code])
    if deaf:
        signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
    print("listening", flush=True)
    http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
    """
)


def _little(*arguments: str) -> ServerSpec:
    return ServerSpec(command=(sys.executable, "-c", LITTLE_SERVER, *arguments))


def _alive(pid: int) -> bool:
    """Whether the process runs; one that ended and waits to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_server_that_ends_while_starting_is_reported_with_its_log(tmp_path: Path) -> None:
    code = "print('no such model: zebra'); raise SystemExit(3)"
    spec = ServerSpec(command=(sys.executable, "-c", code))
    begun = time.monotonic()
    with pytest.raises(ServerError, match="no such model: zebra"):
        Server(spec, tmp_path / "log").start(ready_within=60)
    assert time.monotonic() - begun < 30, "it waited for the deadline, not for the process"


def test_a_server_that_never_answers_is_stopped_at_the_deadline(tmp_path: Path) -> None:
    code = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
    server = Server(ServerSpec(command=(sys.executable, "-c", code)), tmp_path / "log")
    with pytest.raises(ServerError, match="did not become ready"):
        server.start(ready_within=2)
    assert not _alive(int(server.log_text().split()[1]))


@pytest.mark.parametrize("mood", ["", "deaf"])
def test_stop_ends_the_whole_group(
    tmp_path: Path, mood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mood:  # otherwise this waits for each signal's full grace
        monkeypatch.setattr("tests.support.server.GRACE", ((2, 0.5), (15, 0.5)))
        monkeypatch.setattr("tests.support.server.GROUP_GRACE", 0.5)
    with Server(_little(mood), tmp_path / "log") as server:
        members = server.processes()
        assert len(members) == 2
        with client(server) as http:
            assert http.get("/health").status_code == 200
    for _ in range(50):
        if not any(_alive(pid) for pid in members):
            break
        time.sleep(0.1)
    assert [pid for pid in members if _alive(pid)] == []
    server.stop()  # a second stop is harmless


def test_the_environment_of_the_developer_does_not_reach_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setenv("VLLM_PLUGINS", "assay")
    code = "import os; print(sorted(k for k in os.environ if k.startswith('VLLM_')))"
    spec = ServerSpec(command=(sys.executable, "-c", code), env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    server = Server(spec, tmp_path / "log")
    with pytest.raises(ServerError):
        server.start(ready_within=30)
    assert server.log_text().strip() == "['VLLM_CPU_KVCACHE_SPACE']"


def test_free_ports_differ() -> None:
    assert len({free_port() for _ in range(20)}) > 1


@pytest.mark.parametrize("stride", [1, 3])
def test_the_grammar_twin_masks_bit_by_bit(stride: int) -> None:
    """Against a plain loop over the kernel's definition; inactive draft positions stay."""
    generator = torch.Generator().manual_seed(stride)
    vocab, first_rows = 70, torch.tensor([0, 1, 1 + stride, 2 + stride], dtype=torch.int32)
    logits = torch.randn((int(first_rows[-1]), vocab), generator=generator)
    mapping = torch.tensor(
        [request * stride + p for request in (1, 2) for p in range(stride)], dtype=torch.int32
    )
    mask = torch.randint(
        -(2**31), 2**31, (len(mapping), (vocab + 31) // 32), generator=generator
    ).to(torch.int32)

    expected = logits.clone()
    for row, entry in enumerate(mapping.tolist()):
        request, position = divmod(entry, stride)
        first, end = first_rows[request].item(), first_rows[request + 1].item()
        if position >= end - first:
            continue
        for token in range(vocab):
            if not (mask[row, token // 32].item() >> (token % 32)) & 1:
                expected[first + position, token] = float("-inf")

    twin = load_twins().GrammarBitmaskTwin()
    twin[(1, 1)](
        logits, vocab, mapping, first_rows, mask, mask.stride(0), vocab,
        MASK_STRIDE=stride, BLOCK_SIZE=8192,
    )  # fmt: skip
    assert torch.equal(logits, expected)
    assert torch.isfinite(logits[0]).all(), "a row without a grammar was touched"


SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["count", "kind"],
    "additionalProperties": False,
}


def _complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"model": "model", "prompt": "Name three cities.", "max_tokens": 12, "temperature": 0}
    # As ids: half of the tiny vocabulary is single bytes, which all read as the same character.
    body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
    answer = http.post("/v1/completions", json=body | fields)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


@pytest.mark.engine
@pytest.mark.v2
class TestV2OnTheCpu:
    """Model Runner V2 through Triton's interpreter, without the plugin."""

    def test_it_is_v2(self, v2_plain_server: Server) -> None:
        assert "Using V2 Model Runner" in v2_plain_server.log_text()

    def test_greedy_text_has_its_logprobs(self, v2_plain_server: Server) -> None:
        with client(v2_plain_server) as http:
            choice = _complete(http, logprobs=5)
        for chosen, top in zip(
            choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True
        ):
            assert chosen == pytest.approx(max(top.values()), abs=1e-6)
            assert len(top) == 5

    def test_a_seed_repeats_and_another_differs(self, v2_plain_server: Server) -> None:
        with client(v2_plain_server) as http:
            first, again, other = (
                _complete(http, temperature=1.0, seed=seed)["token_ids"] for seed in (5, 5, 6)
            )
        assert first == again != other

    def test_top_k_and_top_p_cut_the_support(self, v2_plain_server: Server) -> None:
        """The combined kernel's twin: every drawn id is among the k likeliest, in one batch."""
        with client(v2_plain_server) as http:
            greedy = _complete(http)["token_ids"]
            assert _complete(http, temperature=1.0, seed=5, top_k=1)["token_ids"] == greedy
            assert _complete(http, temperature=1.0, seed=5, top_p=1e-4)["token_ids"] == greedy
            choice = _complete(
                http, temperature=2.0, seed=5, top_k=3, logprobs=3, n=4, max_tokens=16
            )
        for chosen, top in zip(
            choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True
        ):
            assert chosen >= min(top.values()) - 1e-6

    def test_a_json_schema_is_held(self, v2_plain_server: Server) -> None:
        """The grammar kernel's twin; a batch neighbour without a grammar is not masked."""
        neighbour: list[list[int]] = []
        with client(v2_plain_server) as http:
            alone = _complete(http, max_tokens=40, ignore_eos=True)["token_ids"]

            def other() -> None:
                with client(v2_plain_server) as own:
                    choice = _complete(own, max_tokens=40, ignore_eos=True)
                    neighbour.append(choice["token_ids"])

            thread = threading.Thread(target=other)
            thread.start()
            answer = http.post(
                "/v1/chat/completions",
                json={
                    "model": "model",
                    "messages": [{"role": "user", "content": "Count."}],
                    "max_tokens": 200,
                    "temperature": 0,
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {"name": "count", "schema": SCHEMA},
                    },
                },
            )
            thread.join()
        assert answer.status_code == 200, answer.text
        value = json.loads(answer.json()["choices"][0]["message"]["content"])
        assert set(value) == {"count", "kind"}
        assert 0 <= value["count"] <= 99
        assert neighbour == [alone]


@pytest.mark.engine
@pytest.mark.v2
def test_both_runners_give_the_same_numbers(
    v2_plain_server: Server, tiny_path: Path, tmp_path: Path
) -> None:
    """V1 is still selectable where the CPU Triton helper exists, and agrees with V2."""
    spec = specs.v1(tiny_path, plugin=False, max_model_len=specs.TINY_MODEL_LENGTH)
    with Server(spec, tmp_path / "v1-tiny-plain.log") as v1_tiny, client(v1_tiny) as http:
        assert "Using V2 Model Runner" not in v1_tiny.log_text()
        one = _complete(http, logprobs=5, max_tokens=24)
        # The combined kernel is not called on V1: it would need a compiler nobody has.
        assert (
            _complete(http, temperature=1.0, seed=5, top_k=1)["token_ids"]
            == (one["token_ids"][:12])
        )
    with client(v2_plain_server) as http:
        two = _complete(http, logprobs=5, max_tokens=24)
    assert one["token_ids"] == two["token_ids"]
    assert one["logprobs"]["token_logprobs"] == pytest.approx(
        two["logprobs"]["token_logprobs"], abs=1e-3
    )


@pytest.mark.engine
@pytest.mark.v2
def test_a_stopped_server_leaves_no_process_and_no_shared_memory(
    tiny_path: Path, cpu_triton: Path, tmp_path: Path
) -> None:
    spec = specs.v2(tiny_path, cpu_triton, plugin=False, max_model_len=256)
    with Server(spec, tmp_path / "log") as server:
        members = server.processes()
        mapped = {
            line.split()[-1]
            for pid in members
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if "/dev/shm/psm_" in line
        }
        assert len(members) >= 3
        assert mapped, "the engine's broadcast rings were not found; the test proves nothing"
    assert [pid for pid in members if _alive(pid)] == []
    assert [name for name in mapped if Path(name).exists()] == []
