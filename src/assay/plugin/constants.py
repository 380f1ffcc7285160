"""Numbers and names the engine side lives by, each with its origin."""

from __future__ import annotations

from typing import Final

MAX_TRACE_POSITIONS: Final = 32_768
"""Longest accepted trace (spec replay section 1; F9). A longer one is refused with 400."""

MAX_TOP_TOKENS: Final = 64
"""Most top tokens accepted at one position (spec replay section 1; F9)."""

NOT_FORCED: Final = -1
"""Internal mark of a row that samples as usual. Clients may never send it (F7)."""

TRACE_ARG: Final = "assay_trace"
MODE_ARG: Final = "assay_mode"
KEY_ARG: Final = "assay_key"
RESERVED_PREFIX: Final = "assay_"
"""Keys inside ``SamplingParams.extra_args``. A caller's own ``vllm_xargs`` may not use the prefix."""

REQUEST_FIELDS: Final = ("enforced_tokens", "enforced_str", "logprobs_mode")
"""The plain request fields this plugin adds to chat completions and completions."""

REQUEST_MODES: Final = ("raw_logprobs", "processed_logprobs")
"""Modes a request may ask for (spec replay section 1)."""

RESPONSE_FIELD: Final = "assay"
"""Where the evidence of a replay travels back. Absent from every other response."""

RESPONSE_VERSION: Final = 1
"""Version of that field's layout."""

MAX_OPEN_REPLAYS: Final = 4_096
"""Replays whose evidence a worker holds at once. vLLM's default ``max_num_seqs`` is 256-1024; a
replay is freed when its response ends, so this is reached only if API servers die without saying
so. The oldest is dropped then, and its evidence reported as incomplete."""

MAX_OPEN_POSITIONS: Final = 4_194_304
"""Positions over all open replays: 37 bytes each, so at most 148 MiB of host memory a worker."""

GREEDY_BELOW: Final = 1e-5
"""vLLM samples greedily below this temperature, on both runners (``SamplingParams``)."""

SUPPORTED_ENGINES: Final = ("0.31", "0.32", "0.33")
"""vLLM minor versions whose private names were checked (see ``surfaces.py``)."""

RING_CHUNKS_SETTING: Final = "VLLM_MQ_MAX_CHUNKS"
"""Environment name of the ring setting. Named like vLLM's own ``VLLM_MQ_MAX_CHUNK_BYTES_MB``."""

MAX_RING_CHUNKS: Final = 4_096
"""Upper bound of the setting: 4096 chunks of 24 MiB are 96 GiB a ring, past any real /dev/shm."""
