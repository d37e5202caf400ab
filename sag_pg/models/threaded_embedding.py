"""An embedding model of this process, made fit to be awaited."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from sag_pg.models.base import EmbeddingModel, Vector

# So many texts are embedded in one go, so that a question need not wait for all of a long list.
_TEXTS_AT_ONCE: Final = 8


class ThreadedEmbedding:
    """Runs a local model in one thread of its own.

    One, because two inferences at once only slow each other down. What waits when its task is
    cancelled is never begun; what runs comes to its end, and nobody gets its result.

    Args:
        model: The model.
    """

    def __init__(self, model: EmbeddingModel) -> None:
        self._model = model
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedding")

    @property
    def name(self) -> str:
        """The name that the database keeps."""
        return self._model.name

    @property
    def dimensions(self) -> int:
        """The length of each vector."""
        return self._model.dimensions

    def knows(self, text: str) -> bool:
        """Whether the text is mainly in a script that the model was trained on."""
        return self._model.knows(text)

    async def embed_passages_async(self, texts: Sequence[str]) -> Vector:
        """Embed texts to be found; as `EmbeddingModel.embed_passages`."""
        return await self._embed(self._model.embed_passages, texts)

    async def embed_questions_async(self, texts: Sequence[str]) -> Vector:
        """Embed questions. Returns a float32 array of shape (len(texts), dimensions)."""
        return await self._embed(self._embed_questions, texts)

    def _embed_questions(self, texts: Sequence[str]) -> Vector:
        return np.stack([self._model.embed_question(text) for text in texts])

    async def _embed(
        self, embed: Callable[[Sequence[str]], Vector], texts: Sequence[str]
    ) -> Vector:
        loop = asyncio.get_running_loop()
        rows = [
            await loop.run_in_executor(self._executor, embed, texts[start : start + _TEXTS_AT_ONCE])
            for start in range(0, len(texts), _TEXTS_AT_ONCE)
        ]
        return np.concatenate(rows) if rows else np.empty((0, self.dimensions), np.float32)
