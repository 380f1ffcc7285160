"""Steps of a network's client that have to do with the model: up, state, chat, down."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from typing import Any

from .wire import API, Wire, need, until

CHAT = "/v1/chat/completions"
STATE_FIELDS: dict[str, type] = {
    "state": str,
    "version": str,
    "poc_status": str,
    "inference_healthy": bool,
    "loaded_model": str,
    "poc_validation_inference": bool,
}


class Serving:
    """Each step returns what it found, for its line. ``backends``: how many are ready, once up."""

    def __init__(self, options: Namespace, wire: Wire) -> None:
        self.backends = 0
        self._options = options
        self._wire = wire
        self._name = ""

    def up(self) -> str:
        begun = time.monotonic()
        answer = self._wire.post(f"{API}/inference/up", self._up_body())
        need(answer == {"status": "OK"}, f"answered {answer}")
        return self._is_up(begun)

    def up_async(self) -> str:
        self._wire.post(f"{API}/inference/down")
        begun = time.monotonic()
        answer = self._wire.post(f"{API}/inference/up/async", self._up_body())
        need(answer == {"status": "OK"}, f"answered {answer}")
        again, _ = self._wire.look(f"{API}/inference/up/async", self._up_body())
        need(again == 409, f"a second one while it starts: HTTP {again}, not 409")

        def is_running() -> bool:
            status = self._wire.get(f"{API}/inference/up/status")
            alive = status["is_starting"] or status["is_running"]
            need(alive, f"{status['status']}: {status['error']}")
            return bool(status["is_running"])

        until(is_running, "is_running in /inference/up/status", self._options.within)
        return f"a second one 409; {self._is_up(begun)}"

    def state(self) -> str:
        state = self._wire.get(f"{API}/state")
        for name, kind in STATE_FIELDS.items():
            need(isinstance(state.get(name), kind), f"{name} is {state.get(name)!r}")
        self.expect_state(state="INFERENCE", poc_status="IDLE", inference_healthy=True)
        need(state["loaded_model"] == self._options.model, f"loaded_model {state['loaded_model']}")
        return f"INFERENCE, poc IDLE, version {state['version']}"

    def expect_state(self, **wanted: object) -> None:
        state = self._wire.get(f"{API}/state")
        found = {name: state[name] for name in wanted}
        need(found == wanted, f"/state has {found}, not {wanted}")

    def versions(self) -> str:
        found = self._wire.get(f"{API}/versions")
        validates = found["poc_validation_inference"]
        need(found["vllm_version"], f"vllm_version {found['vllm_version']!r}")
        need(isinstance(validates, bool), f"poc_validation_inference {validates!r}")
        return f"vLLM {found['vllm_version']}, poc_validation_inference {validates}"

    def devices(self) -> str:
        found = self._wire.get(f"{API}/gpu/devices")
        need(found["count"] == len(found["devices"]), f"count {found['count']} of {found}")
        return f"{found['count']} GPUs"

    def chat(self) -> str:
        answer = self._wire.post(CHAT, self.chat_body())
        tokens = answer["usage"]["completion_tokens"]
        need(isinstance(answer["choices"][0]["message"]["content"], str), f"{answer}")
        need(tokens > 0, f"{tokens} tokens")
        return f"{tokens} tokens"

    def chat_streamed(self) -> str:
        lines = self._wire.lines(CHAT, {**self.chat_body(), "stream": True})
        events = [line.removeprefix("data: ") for line in lines if line]
        need(events and events[-1] == "[DONE]", f"ends with {events[-1:]}, not with [DONE]")
        chunks = [json.loads(event)["choices"][0] for event in events[:-1]]
        text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
        whole = self._wire.post(CHAT, self.chat_body())["choices"][0]["message"]["content"]
        need(text == whole, f"streamed {text!r}, in one piece {whole!r}")
        return f"{len(events)} events, the text of the answer in one piece"

    def down(self) -> str:
        answer = self._wire.post(f"{API}/inference/down")
        need(answer == {"status": "OK"}, f"answered {answer}")
        self.expect_state(state="STOPPED", poc_status="NO_BACKENDS", inference_healthy=False)
        status, _ = self._wire.look(CHAT, self.chat_body())
        need(status == 503, f"chat without a model: HTTP {status}, not 503")
        return "STOPPED, chat 503"

    def chat_body(self) -> dict[str, Any]:
        messages = [{"role": "user", "content": "What is a nonce?"}]
        return {"model": self._name, "messages": messages, "max_tokens": 8, "temperature": 0}

    def _up_body(self) -> dict[str, Any]:
        options = self._options
        return {
            "model": options.model,
            "dtype": options.dtype,
            "additional_args": options.additional_args,
        }

    def _is_up(self, begun: float) -> str:
        seconds = time.monotonic() - begun
        status = self._wire.get(f"{API}/inference/up/status")
        found = {name: status[name] for name in ("is_running", "is_starting", "status", "error")}
        wanted = {"is_running": True, "is_starting": False, "status": "running", "error": None}
        need(found == wanted, f"{found}, not {wanted}")
        ready = [backend["port"] for backend in status["backends"] if backend["state"] == "ready"]
        count = self._options.backends or len(status["backends"])
        need(len(ready) == count, f"{len(ready)} backends of {count} are ready")
        self.backends = count
        self._name = str(self._wire.get("/v1/models")["data"][0]["id"])
        return f"backends {ready} ready after {seconds:.0f} s"
