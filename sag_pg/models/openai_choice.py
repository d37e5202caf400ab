"""The final choice among candidates by a language model: its part of `choose`."""

from collections.abc import Sequence
from typing import Any, Final

from sag_pg.models.base import (
    CANDIDATE_TEXT_CHARACTERS,
    CANDIDATE_TITLE_CHARACTERS,
    Candidate,
)
from sag_pg.models.prompted_model import PromptedModel
from sag_pg.text import clean

_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"chosen": {"type": "array", "items": {"type": "integer"}}},
    "required": ["chosen"],
    "additionalProperties": False,
}


class OpenAIChooser(PromptedModel):
    """Asks a language model for the numbers of the candidates that hold the evidence."""

    prompt = "choice-1"

    async def choose(
        self, question: str, candidates: Sequence[Candidate], limit: int
    ) -> tuple[int, ...]:
        """Choose the candidates that hold the evidence for a question.

        Args:
            question: The question in words.
            candidates: At least one. One alone is chosen without asking.
            limit: How many to choose at most, at least 1.

        Returns:
            Indices into `candidates`, best first, at least one, at most `limit`, none twice.

        Raises:
            ModelError: The model gave no usable answer.
        """
        if len(candidates) <= 1:
            return tuple(range(len(candidates)))
        question = clean(question)
        asked = {
            "question": question,
            "candidates": [
                {
                    "number": number,
                    "title": clean(candidate.title)[:CANDIDATE_TITLE_CHARACTERS],
                    "text": clean(candidate.text)[:CANDIDATE_TEXT_CHARACTERS],
                }
                for number, candidate in enumerate(candidates, 1)
            ],
            "limit": limit,
        }
        return await self.ask(
            asked,
            _SCHEMA,
            lambda answer: _read_answer(answer, len(candidates), limit),
            text=question,
        )


def _read_answer(answer: Any, count: int, limit: int) -> tuple[int, ...]:
    """Raises ValueError, whose message tells the model what is wrong."""
    if not isinstance(answer, dict) or not isinstance(answer.get("chosen"), list):
        raise ValueError('the answer is not a JSON object with a list "chosen"')
    numbers = dict.fromkeys(map(_number, answer["chosen"]))
    chosen = [number - 1 for number in numbers if number is not None and 1 <= number <= count]
    if not chosen:
        raise ValueError(f'"chosen" holds no number from 1 to {count}')
    return tuple(chosen[:limit])


def _number(stated: Any) -> int | None:
    """Read a number as models write it: 3, 3.0, "3", or the candidate with its number."""
    if isinstance(stated, dict):
        stated = stated.get("number")
    if isinstance(stated, str) and stated.strip().isdecimal():
        return int(stated.strip()[:9])
    # True is 1 to Python.
    if isinstance(stated, bool) or not isinstance(stated, int | float):
        return None
    return int(stated) if stated == stated // 1 else None
