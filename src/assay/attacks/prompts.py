"""Forty prompts of many kinds and languages. Written for this project."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """``language`` is an ISO 639-1 code; ``system`` an optional system prompt the client sets."""

    language: str
    text: str
    system: str | None = None

    def messages(self) -> list[dict[str, str]]:
        """The chat messages, system prompt first."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, {"role": "user", "content": self.text}]


QUESTIONS: tuple[Question, ...] = (
    Question("en", "Explain how a bicycle stays upright when it moves."),
    Question("de", "Beschreibe, wie aus Milch Käse gemacht wird."),
    Question("en", "Write a short story about a lighthouse keeper who finds a letter."),
    Question("fr", "Explique pourquoi les feuilles changent de couleur en automne."),
    Question("en", "Give me a plan for a week of simple dinners for two people."),
    Question("es", "Cuenta la historia de un pescador y una tormenta."),
    Question("en", "What are the differences between a list and a tuple in Python?"),
    Question("pt", "Explique como funciona uma bússola."),
    Question("en", "Write a polite e-mail that asks a landlord to repair a heater."),
    Question("it", "Descrivi una passeggiata al mercato di una piccola città."),
    Question("en", "Describe the life cycle of a butterfly for a school book."),
    Question("ru", "Объясни, почему зимой день короче, чем летом."),
    Question("en", "Compare rail and road transport in three arguments each."),
    Question("zh", "请介绍一下茶是怎么制作的。"),
    Question("en", "Write a poem about rain on a tin roof."),
    Question("ar", "صف يوما عاديا في سوق قديم."),
    Question("en", "Explain compound interest with an example.", "You are a careful tutor."),
    Question("hi", "किसी नदी के किनारे बसे गाँव का वर्णन कीजिए।"),
    Question("en", "Invent a board game and describe its rules."),
    Question("ja", "日本の四季について短く説明してください。"),
    Question("en", "Which tools does a beginner need to repair furniture, and why?"),
    Question("nl", "Leg uit hoe een dijk het land tegen water beschermt."),
    Question("en", "Write a function in Python that counts words in a text, with comments."),
    Question("pl", "Opisz, jak przygotować ogród na wiosnę."),
    Question("en", "Tell me about the history of the printing press."),
    Question("sv", "Berätta om hur man bygger en enkel båt av trä."),
    Question("en", "Summarise the idea of supply and demand.", "Answer like a radio host."),
    Question("tr", "Bir kütüphanenin neden önemli olduğunu anlat."),
    Question("en", "What should a person know before adopting a dog?"),
    Question("ko", "김치를 만드는 방법을 간단히 설명해 주세요."),
    Question("en", "Describe a city that was built on the back of a giant turtle."),
    Question("uk", "Розкажи, як бджоли роблять мед."),
    Question("en", "Explain the water cycle to someone who has never seen the sea."),
    Question("de", "Schreibe einen Dialog zwischen einem Schneider und einem Kunden."),
    Question("en", "Make a packing list for a three-day hike in the mountains."),
    Question("fr", "Décris le travail d'un boulanger pendant une nuit d'hiver."),
    Question("en", "Why do we have leap years?"),
    Question("es", "Explica cómo se forma un volcán."),
    Question("en", "Write the opening of a detective novel set in a greenhouse."),
    Question("el", "Περιέγραψε μια βόλτα στο λιμάνι ένα καλοκαιρινό πρωί."),
)


def question(index: int) -> Question:
    """The question of claim ``index``; they repeat after the last, with another seed."""
    return QUESTIONS[index % len(QUESTIONS)]
