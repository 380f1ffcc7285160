"""What every client of a vLLM server must know of its connections."""

from __future__ import annotations

from typing import Final

IDLE_S: Final = 2.0
"""Seconds an idle connection to a vLLM server is kept for another request.

vLLM closes one after 5 (``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``), and httpx would keep it for 5 too: a
request that meets that moment gets no answer, and most of ours must not be repeated.
"""
