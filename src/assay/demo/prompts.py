"""The twelve prompts of ``assay demo``: ten languages, one JSON schema, one conversation."""

from __future__ import annotations

from typing import Any

from assay.replay.prompts import PromptLine

MAX_TOKENS = 64
MIN_TOKENS = 48
"""A very short answer says little about the engine; the model is kept talking."""
TEMPERATURE = 0.7
TOP_LOGPROBS = 5

_QUESTIONS: tuple[tuple[str, str], ...] = (
    ("en", "Explain in a few sentences why the sky is blue."),
    ("de", "Erkläre in einigen Sätzen, wie ein Kühlschrank funktioniert."),
    ("fr", "Raconte une courte histoire d'un chat qui part en voyage à Marseille."),
    ("es", "Describe los pasos para preparar una tortilla de patatas."),
    ("pt", "Escreva um parágrafo sobre a importância dos rios para as cidades."),
    ("it", "Spiega a un bambino che cosa fa un fornaio durante la notte."),
    ("ru", "Расскажи коротко, зачем людям нужны библиотеки."),
    ("zh", "请用几句话介绍一下长城的历史。"),
    ("ar", "اكتب فقرة قصيرة عن أهمية الماء في حياتنا."),
    ("hi", "कुछ वाक्यों में बताइए कि बारिश कैसे होती है।"),
)

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 1000, "maximum": 99999999},
        "description": {"type": "string", "minLength": 80, "maxLength": 160},
    },
    "required": ["city", "country", "population", "description"],
    "additionalProperties": False,
}

_CONVERSATION: tuple[dict[str, str], ...] = (
    {"role": "system", "content": "You are a patient cooking teacher."},
    {"role": "user", "content": "I have flour, eggs and milk. What can I make?"},
    {"role": "assistant", "content": "You can make pancakes: simple, quick and good."},
    {"role": "user", "content": "How do I make them, step by step, and what can go wrong?"},
)


def demo_prompts() -> list[PromptLine]:
    """Twelve chat requests, each with a seed of its own."""
    bodies = [
        _body([{"role": "user", "content": question}], min_tokens=MIN_TOKENS)
        for _, question in _QUESTIONS
    ]
    bodies.append(
        _body(
            [{"role": "user", "content": "Describe one large city of your choice as JSON."}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "city", "schema": _SCHEMA},
            },
        )
    )
    bodies.append(_body([dict(turn) for turn in _CONVERSATION], min_tokens=MIN_TOKENS))
    return [
        PromptLine(line, "chat", {**body, "seed": 1000 + line})
        for line, body in enumerate(bodies, start=1)
    ]


def demo_names() -> list[str]:
    """What each prompt is, in the same order."""
    return [*(language for language, _ in _QUESTIONS), "json schema", "conversation"]


def _body(messages: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    return {
        "messages": messages,
        "max_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
        "top_logprobs": TOP_LOGPROBS,
        "logprobs_mode": "raw_logprobs",
        **more,
    }
