"""A language model with one of the prompts: what extraction, understand and choose ask alike."""

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from sag_pg.models.endpoint import Endpoint
from sag_pg.models.prompts import prompt_for
from sag_pg.models.structured_output import complete_json

T = TypeVar("T")


class PromptedModel:
    """Asks a language model by a prompt, which a subclass names.

    Attributes:
        prompt: Name and version of the prompt, such as "choice-1". The form of its answers is
            called as it is without the version.
        endpoint: The chat endpoint.
        model: Name of the model there.
    """

    prompt: ClassVar[str]

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.endpoint = endpoint
        self.model = model

    @property
    def name(self) -> str:
        """The model and the version of the prompt."""
        return f"openai:{self.model}+{self.prompt}"

    async def ask(
        self,
        asked: Mapping[str, Any],
        schema: Mapping[str, Any],
        read: Callable[[Any], T],
        *,
        text: str,
    ) -> T:
        """Ask, and read the answer.

        Args:
            asked: What the model is to work on. It goes as JSON, which no text can break out of.
            schema: JSON schema of the answer.
            read: Makes the result of the decoded answer, as for `complete_json`.
            text: A text whose script decides about the language of the prompt.

        Returns:
            What `read` returns.

        Raises:
            ModelError: As `complete_json`.
        """
        messages = self.messages(asked, text=text)
        return await complete_json(
            self.endpoint, self.model, messages, self.prompt.rpartition("-")[0], schema, read
        )

    def messages(self, asked: Mapping[str, Any], *, text: str) -> list[dict[str, str]]:
        """Return the messages that `ask` sends."""
        return [
            {"role": "system", "content": prompt_for(self.prompt, text)},
            {"role": "user", "content": json.dumps(asked, ensure_ascii=False)},
        ]
