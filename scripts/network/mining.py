"""Steps of a network's client that have to do with proof of compute: rounds and validations."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .artifacts import (
    CheckError,
    Vectors,
    check_vectors,
    farthest,
    read_artifacts,
    swapped,
    written,
)
from .serving import CHAT, Serving
from .wire import API, Round, Wire, need, until

POW = f"{API}/inference/pow"
K_DIM = 12
"""What k_dim is when a client leaves it out."""
DIST_THRESHOLD = 0.02
"""Distance of two vectors of a nonce above which the reference counts a mismatch (http.md)."""
STAT_TEST = {"dist_threshold": DIST_THRESHOLD, "p_mismatch": 0.001, "p_value_threshold": 0.01}
SAMPLE = 24
"""Nonces of each class that are computed again and validated."""
EACH_CLASS = 64
"""Nonces of each class that must come before a round is called good."""
VERDICT_FIELDS = {"n_total", "n_mismatch", "mismatch_nonces", "p_value", "fraud_detected"}


class Mining:
    """Each step returns what it found, for its line. ``store``: SQLite file of the receiver.

    Use as a context manager; it ends a round that a failed step left behind.
    """

    def __init__(self, options: Namespace, wire: Wire, serving: Serving, store: Path) -> None:
        self._options = options
        self._wire = wire
        self._serving = serving
        rounds = (options.model, options.seq_len, options.receiver, store)
        self._round = Round(*rounds)
        self._second = Round(*rounds)
        self._sample: Vectors = {}
        self._victim = 0
        self._mines = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End a round whose step failed: nobody takes what is mined from here on."""
        if self._mines:
            with suppress(CheckError):
                self._wire.post(f"{POW}/stop")

    def init(self) -> str:
        return self._begin(self._round)

    def gate(self) -> str:
        again, _ = self._wire.look(f"{POW}/init/generate", self._round.body())
        need(again == 409, f"a second round: HTTP {again}, not 409")
        status, headers = self._wire.look(CHAT, self._serving.chat_body())
        if self._options.policy == "share":
            need(status == 200, f"chat: HTTP {status}, not 200")
            return "a second round 409; chat goes on"
        wait = headers.get("retry-after")
        need((status, wait) == (503, "1"), f"chat: HTTP {status}, Retry-After {wait}; not 503, 1")
        return "a second round 409; chat 503, Retry-After 1"

    def status(self) -> str:
        """``total_processed`` counts what was delivered."""

        def mining() -> Any:
            found = self._wire.get(f"{POW}/status")
            need(found["status"] == "GENERATING", f"status {found['status']}")
            need(not found["round"]["degraded"], f"degraded: {found['round']['reason']}")
            return found if found["stats"]["total_processed"] > 0 else None

        found = until(mining, "total_processed above 0", self._options.within)
        states = [backend["status"] for backend in found["backends"]]
        need(states == ["GENERATING"] * self._round.n_groups, f"backends are {states}")
        self._serving.expect_state(poc_status="GENERATING")
        return f"GENERATING, {found['stats']['nonces_per_second']:.0f} nonces/s"

    def callbacks(self) -> str:
        sizes = self._grown(self._round, [0] * self._round.n_groups)
        return f"{sizes} artifacts of each class at {self._round.url}/generated"

    def stop(self) -> str:
        kept = self._stop_round(self._round)
        self._serving.expect_state(poc_status="IDLE")
        return f"STOPPED, then IDLE; the {kept} artifacts the node had kept have all come"

    def nonces(self) -> str:
        return self._check_all(self._round)

    def vectors(self) -> str:
        """The same nonces again, by ``/generate``."""
        of, groups = self._round.identity, self._round.n_groups
        self._sample = {
            nonce: vector
            for nonce, vector in self._round.got().vectors.items()
            if (nonce - of.node_id) // of.node_count < SAMPLE * groups
        }
        body = self._round.body(nonces=sorted(self._sample), wait=True)
        answer = self._wire.post(f"{POW}/generate", body)
        need(answer["status"] == "completed", f"status {answer['status']}")
        wanted = {"dtype": "f16", "k_dim": K_DIM, "endian": "le"}
        need(answer["encoding"] == wanted, f"encoding {answer['encoding']}")
        apart = farthest(self._sample, read_artifacts(answer["artifacts"]))
        need(apart < DIST_THRESHOLD, f"mined and computed again are {apart:.4f} apart")
        return f"{len(self._sample)} of both classes computed again, at most {apart:.2g} apart"

    def validation(self) -> str:
        for fraud in (False, True):
            verdict = self._wire.post(f"{POW}/generate", self._claim(fraud=fraud, wait=True))
            need(verdict["status"] == "completed", f"status {verdict['status']}")
            self._judge(verdict, fraud=fraud)
        return f"{len(self._sample)} vectors as mined: no fraud; of other nonces: fraud"

    def validated(self) -> str:
        """The same two by callback, under the id the client was given."""
        wanted: dict[str, bool] = {}
        for fraud in (False, True):
            body = self._claim(fraud=fraud, wait=False, url=self._round.url)
            queued = self._wire.post(f"{POW}/generate", body)
            found = queued["status"], queued["queued_count"]
            need(found == ("queued", len(self._sample)), f"{found}")
            need(queued["request_id"].partition(":")[0].isdigit(), f"{queued} has no port:uuid")
            self._judge(self._completed(queued["request_id"]), fraud=fraud)
            wanted[queued["request_id"]] = fraud

        def told() -> Any:
            results = self._round.got().results
            return results if len(results) >= len(wanted) else None

        results = until(told, f"/validated of {list(wanted)}", self._options.within)
        found_results = [(r["request_id"], bool(r["fraud_detected"])) for r in results]
        need(sorted(found_results) == sorted(wanted.items()), f"{found_results}, not {wanted}")
        return f"one callback for each of {', '.join(wanted)}: no fraud, fraud"

    def degraded(self) -> str:
        self._begin(self._second)
        before = self._grown(self._second, [0] * self._second.n_groups)
        victim = self._wire.get(f"{API}/inference/up/status")["backends"][-1]
        self._victim = int(victim["port"])
        os.kill(int(victim["pid"]), signal.SIGKILL)

        def is_degraded() -> Any:
            found = self._wire.get(f"{POW}/status")["round"]
            return found if found["degraded"] and not found["unassigned"] else None

        found = until(is_degraded, "degraded, and every class is mined", self._options.within)
        need(str(self._victim) not in found["classes"], f"classes {found['classes']}")
        sizes = self._grown(self._second, before)
        return f"backend {self._victim} killed: {found['reason']}; {before} grew to {sizes}"

    def rejoin(self) -> str:
        def is_back() -> Any:
            found = self._wire.get(f"{POW}/status")["round"]
            there = found["classes"].get(str(self._victim))
            return found if there and not found["degraded"] else None

        found = until(is_back, f"backend {self._victim} mines again", self._options.within)
        groups = sorted(group for held in found["classes"].values() for group in held)
        need(set(groups) == set(range(self._second.n_groups)), f"classes {found['classes']}")
        before = until(self._second.sizes, "each class is whole", self._options.within)
        sizes = self._grown(self._second, before)
        return f"{found['classes']}; {before} grew to {sizes}"

    def second_nonces(self) -> str:
        self._stop_round(self._second)
        return self._check_all(self._second)

    def _begin(self, mining: Round) -> str:
        self._mines = True
        answer = self._wire.post(f"{POW}/init/generate", mining.body(url=mining.url))
        wanted = self._serving.backends
        found = [answer[name] for name in ("status", "errors", "backends", "n_groups")]
        need(found == ["OK", [], wanted, wanted], f"status, errors, backends, n_groups: {found}")
        groups = [result["group_id"] for result in answer["results"]]
        ports = [result["port"] for result in answer["results"]]
        need(groups == list(range(wanted)), f"group ids {groups} of {wanted}")
        need(ports == sorted(set(ports)), f"ports {ports}")
        mining.n_groups = wanted
        return f"{wanted} groups on {ports}"

    def _grown(self, mining: Round, before: Sequence[int]) -> list[int]:
        """Sizes of the classes once each has grown by EACH_CLASS."""

        def look() -> list[int] | None:
            sizes = mining.sizes()
            grown = all(now >= then + EACH_CLASS for now, then in zip(sizes, before, strict=True))
            return sizes if grown else None

        return until(look, f"{EACH_CLASS} more nonces of each class", self._options.within)

    def _stop_round(self, mining: Round) -> int:
        """Stop, and wait until all has come; how many artifacts the node had kept before."""
        kept = int(self._wire.get(f"{POW}/status")["round"]["total_kept"])
        for _ in range(2):  # idempotent
            answer = self._wire.post(f"{POW}/stop")
            found = answer["status"], answer["errors"], answer["pow_status"]
            need(found == ("OK", [], {"status": "STOPPED"}), f"{found}")
        self._mines = False
        status = self._wire.get(f"{POW}/status")["status"]
        need(status == "IDLE", f"status after the stop: {status}")
        last = [-1]

        def settled() -> bool:
            count = sum(mining.sizes())
            before, last[0] = last[0], count
            return count == before and count >= kept and self._waiting() == 0

        until(settled, f"{kept} artifacts have come and none waits", self._options.within)
        return kept

    def _waiting(self) -> float:
        """Artifacts the node has not delivered."""
        name = "assay_node_artifacts_waiting "
        lines = self._wire.text("/metrics").splitlines()
        return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    def _check_all(self, mining: Round) -> str:
        porosity = check_vectors(mining.got(), K_DIM)
        return f"{mining.sizes()} of each class, no gap, none refused, porosity {porosity:.1f}"

    def _claim(self, *, fraud: bool, **more: Any) -> dict[str, Any]:
        vectors = swapped(self._sample) if fraud else self._sample
        return self._round.body(
            nonces=sorted(vectors),
            validation={"artifacts": [written(*one) for one in vectors.items()]},
            stat_test=STAT_TEST,
            **more,
        )

    def _completed(self, request_id: str) -> dict[str, Any]:
        def look() -> Any:
            result = self._wire.get(f"{POW}/generate/{request_id}")
            failed = result["status"] in ("failed", "cancelled")
            need(not failed, f"{request_id} {result['status']}: {result.get('error')}")
            return result if result["status"] == "completed" else None

        result: dict[str, Any] = until(look, f"{request_id} completed", self._options.within)
        need(result["request_id"] == request_id, f"asked {request_id}, got {result['request_id']}")
        return result

    def _judge(self, verdict: dict[str, Any], *, fraud: bool) -> None:
        missing = sorted(VERDICT_FIELDS - verdict.keys())
        need(not missing, f"the verdict has no {missing}")
        shown = {name: verdict[name] for name in ("n_total", "n_mismatch", "p_value")}
        need(verdict["n_total"] == len(self._sample), f"{shown} of {len(self._sample)}")
        need(verdict["fraud_detected"] is fraud, f"fraud_detected is not {fraud}: {shown}")
        mismatched = len(verdict["mismatch_nonces"])
        need(mismatched == verdict["n_mismatch"], f"{mismatched} mismatch_nonces: {shown}")
