"""A process with vLLM's engine in it, told what to do by JSON lines: ``python -m tests.engine.poc.driver``.

The engine is stepped by hand, so that a proof-of-compute call falls between two known steps of
requests in flight; the HTTP servers of the other tests cannot repeat that. Answers go to the file
descriptor named by the first argument, since vLLM prints to both standard ones.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

from vllm import LLM, SamplingParams


class Driver:
    """At most one engine at a time."""

    def __init__(self) -> None:
        self._llm: LLM | None = None

    def start(self, model: str, **options: Any) -> dict[str, Any]:
        """Load an engine. What it cannot do is an answer too: ``{"refused": reason}``."""
        self.stop()
        try:
            self._llm = LLM(model, **options)
        except Exception as error:  # noqa: BLE001 - vLLM raises many kinds, the test reads the words
            return {"refused": f"{type(error).__name__}: {error}"}
        scheduler = self._engine().vllm_config.scheduler_config
        return {"async": bool(scheduler.async_scheduling)}

    def stop(self) -> None:
        """Unload the engine, and what a start that failed has left of one."""
        from vllm.distributed import cleanup_dist_env_and_memory

        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None
        gc.collect()
        cleanup_dist_env_and_memory()

    def rpc(self, method: str, *args: Any) -> Any:
        """One answer a worker, or ``{"failed": words}`` when the call raised."""
        try:
            return self._loaded().collective_rpc(method, args=args)
        except Exception as error:  # noqa: BLE001 - RPC to other processes raises bare Exception
            return {"failed": f"{type(error).__name__}: {error}"}

    def chat(
        self,
        prompts: list[list[int]],
        max_tokens: int,
        calls: dict[str, list[Any]] | None = None,
        between: int = 0,
    ) -> dict[str, Any]:
        """Greedy answers with log probabilities, all prompts in flight together.

        ``calls`` maps a step number to an RPC ``[method, args]`` made before that step; with
        ``between`` the RPC under ``"each"`` is made before every step up to that number.
        """
        engine = self._engine()
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, logprobs=3, ignore_eos=True)
        for index, prompt in enumerate(prompts):
            engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
        answers: dict[str, Any] = {}
        made = []
        step = running = 0
        while engine.has_unfinished_requests():
            name = str(step) if step >= between else "each"
            if calls and name in calls:
                method, args = calls[name]
                made.append(self.rpc(method, *args))
                running = max(running, engine.get_num_unfinished_requests())
            for output in engine.step():
                if output.finished:
                    answers[output.request_id] = _plain(output)
            step += 1
        return {
            "answers": [answers[str(index)] for index in range(len(prompts))],
            "calls": made,
            "steps": step,
            "in_flight": running,
        }

    def _loaded(self) -> LLM:
        assert self._llm is not None, "start an engine first"
        return self._llm

    def _engine(self) -> Any:
        return self._loaded().llm_engine


def _plain(output: Any) -> dict[str, Any]:
    done = output.outputs[0]
    rows = [
        sorted((token, entry.logprob) for token, entry in position.items())
        for position in done.logprobs
    ]
    return {"ids": list(done.token_ids), "logprobs": rows, "cached": output.num_cached_tokens}


def main() -> None:
    driver = Driver()
    with os.fdopen(int(sys.argv[1]), "w") as answers:
        for line in sys.stdin:
            name, args, options = json.loads(line)
            answer = getattr(driver, name)(*args, **options)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    driver.stop()


if __name__ == "__main__":
    main()
