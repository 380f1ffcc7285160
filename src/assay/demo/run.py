"""The demo: an honest and a cheating server, one validator, twenty-four verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.claims.claim import Claim
from assay.claims.jsonl import write_claims
from assay.demo import poc
from assay.demo.models import rounded_copy, smollm2
from assay.demo.prompts import demo_prompts
from assay.demo.server import DemoServer
from assay.replay.client import HttpEngineClient
from assay.replay.identity import identify
from assay.replay.record import RecordOptions, collect
from assay.replay.verify import VerifyOptions, require_validator, verify_all
from assay.report.page import render
from assay.settings import ClientSettings
from assay.store.database import Store
from assay.store.result import VerifyResult
from assay.store.results_file import ResultsFile

HONEST = "honest (full weights)"
CHEAT = "cheat (int4 weights)"
SERVED_NAME = "SmolLM2-135M-Instruct"
AT_LEAST_CAUGHT = 10
"""Of the cheat's twelve answers. int4 is far from the noise, but one answer can be too short or
too flat to tell; such an answer must come out inconclusive, never pass."""

_FLAGS = ["--served-model-name", SERVED_NAME, "--max-model-len", "2048", "--enforce-eager"]
_CPU_FLAGS = ["--dtype", "float32", "--max-num-seqs", "16"]
_GPU_FLAGS = ["--max-num-seqs", "16", "--gpu-memory-utilization", "0.3"]
_CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class DemoOutcome:
    """Results of both executors in the order of the prompts, and where everything was written."""

    honest: tuple[VerifyResult, ...]
    cheat: tuple[VerifyResult, ...]
    report: Path
    poc: poc.PocOutcome

    @property
    def problems(self) -> list[str]:
        """What did not come out as it must; empty when the demo holds."""
        expected = len(demo_prompts())
        problems = []
        good = Counter(result.verdict.verdict for result in self.honest)
        if good["pass"] != expected:
            problems.append(f"{good['pass']} of {expected} honest answers pass, expected all")
        bad = Counter(result.verdict.verdict for result in self.cheat)
        if bad["fail"] < AT_LEAST_CAUGHT:
            problems.append(
                f"{bad['fail']} of {expected} cheating answers fail, expected at least"
                f" {AT_LEAST_CAUGHT}"
            )
        if bad["fail"] + bad["inconclusive"] != expected:
            problems.append("a cheating answer passes, or is missing")
        if any(r.verdict.verdict != "pass" and not r.verdict.reasons for r in self.cheat):
            problems.append("a cheating answer is refused without a reason")
        return problems + self.poc.problems


async def run_demo(
    output: Path,
    settings: ClientSettings,
    environment: Mapping[str, str],
    *,
    on_cpu: bool,
    say: Callable[[str], None],
) -> DemoOutcome:
    """Run everything and write claims, results, a database and the report into a folder.

    At most two servers live at a time. Raises AssayError when a server does not start.
    """
    say("preparing the model and its int4-rounded copy (once, about a minute)")
    model = smollm2()
    rounded = rounded_copy(model, "int4")
    flags = _FLAGS + (_CPU_FLAGS if on_cpu else _GPU_FLAGS)
    env = {**environment, **_ENVIRONMENT, **(_CPU_ENVIRONMENT if on_cpu else {})}
    env |= poc.MINING_ENVIRONMENT | {"POC_STORE_FOLDER": str(output)}
    say("starting the honest server, which is also the validator")
    with DemoServer(model, flags, env, output / "honest-server.log") as honest:
        honest.wait()
        say("asking the honest server")
        honest_claims = await _record(honest.url, output / "honest.jsonl", settings)
        say("starting the cheating server: the same model with int4 weights")
        with DemoServer(rounded, flags, env, output / "cheat-server.log") as cheat:
            say("verifying the honest answers meanwhile")
            good = await _verify(honest.url, honest_claims, HONEST, output, settings)
            cheat.wait()
            say("asking the cheating server the same questions")
            cheat_claims = await _record(cheat.url, output / "cheat.jsonl", settings)
            say("asking it for proof-of-compute vectors")
            rounded_vectors = await poc.vectors(cheat.url, SERVED_NAME, poc.KEY, settings)
        say("verifying the cheating answers")
        bad = await _verify(honest.url, cheat_claims, CHEAT, output, settings)
        say("judging proof-of-compute vectors, then mining and chatting at once")
        proof = await poc.judge(
            honest.url,
            SERVED_NAME,
            {
                "honest vectors": await poc.vectors(honest.url, SERVED_NAME, poc.KEY, settings),
                "int4 vectors": rounded_vectors,
                "another key's vectors": await poc.vectors(
                    honest.url, SERVED_NAME, poc.OTHER_KEY, settings
                ),
            },
            settings,
        )
    report = output / "report.html"
    report.write_text(render([*good, *bad], "assay demo: honest and cheating"), encoding="utf-8")
    return DemoOutcome(tuple(good), tuple(bad), report, proof)


async def _record(url: str, path: Path, settings: ClientSettings) -> list[Claim]:
    prompts = demo_prompts()
    async with HttpEngineClient(url, settings) as client:
        server = await identify(client)
        claims = await collect(client, server, prompts, RecordOptions(concurrency=len(prompts)))
    write_claims(path, claims)
    return claims


async def _verify(
    url: str, claims: list[Claim], label: str, output: Path, settings: ClientSettings
) -> list[VerifyResult]:
    """All claims afresh: the demo proves itself each time it runs."""
    path = output / f"{label.split(' ', maxsplit=1)[0]}.results.jsonl"
    path.unlink(missing_ok=True)
    options = VerifyOptions(label=label, concurrency=len(claims), retries=settings.retries)
    by_claim: dict[str, VerifyResult] = {}
    with ResultsFile(path) as file, Store(output / "assay.db") as store:

        def keep(result: VerifyResult) -> None:
            file.append(result)
            store.add(result)
            by_claim[result.claim.id] = result

        async with HttpEngineClient(url, settings) as client:
            server = await identify(client)
            require_validator(server, url)
            await verify_all(client, server, claims, options, keep)
    return [by_claim[claim.id] for claim in claims]
