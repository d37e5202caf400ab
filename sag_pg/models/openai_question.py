"""The entities of a question by a language model: its part of `understand`."""

from typing import Any, Final

from sag_pg.models.entity_names import distinct_names
from sag_pg.models.prompted_model import PromptedModel
from sag_pg.text import clean

MOST_ENTITIES: Final = 20

_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"entities": {"type": "array", "items": {"type": "string"}}},
    "required": ["entities"],
    "additionalProperties": False,
}


class OpenAIQuestionReader(PromptedModel):
    """Asks a language model which entities a question names."""

    prompt = "question_entities-1"

    async def read_question(self, question: str) -> tuple[str, ...]:
        """Return the names that a question states, at most 20; none for a question that has none.

        Raises:
            ModelError: The model gave no usable answer.
        """
        question = clean(question)
        return await self.ask({"question": question}, _SCHEMA, _read_answer, text=question)


def _read_answer(answer: Any) -> tuple[str, ...]:
    """Raises ValueError, whose message tells the model what is wrong."""
    if not isinstance(answer, dict) or "entities" not in answer:
        raise ValueError('the answer is not a JSON object with "entities"')
    stated = answer["entities"] or []
    if not isinstance(stated, list):
        raise ValueError('"entities" is not a list')
    names = distinct_names(stated)
    if stated and not any(isinstance(name, str) for name in stated):
        raise ValueError('"entities" is not a list of strings')
    return tuple(names[:MOST_ENTITIES])
