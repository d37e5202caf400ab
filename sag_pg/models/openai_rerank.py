"""The final choice by a reranking model behind a `/rerank` endpoint.

The path is not OpenAI's but Cohere's, and common to Cohere, Jina, vLLM, LiteLLM and others.
"""

import math
from collections.abc import Sequence
from typing import Any

from sag_pg.errors import ModelError
from sag_pg.models.base import Candidate
from sag_pg.models.endpoint import Endpoint

_PATH = "/rerank"


class OpenAIRerank:
    """Chooses the candidates that a reranking model scores highest.

    Args:
        endpoint: Where the model is.
        model: Its name there.
    """

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint = endpoint
        self._model = model

    @property
    def name(self) -> str:
        """Model and way of use; part of what answers are cached by."""
        return f"rerank:{self._model}"

    async def choose(
        self, question: str, candidates: Sequence[Candidate], limit: int
    ) -> tuple[int, ...]:
        """Choose the candidates that the model scores highest.

        Args:
            question: The question.
            candidates: What to choose from. A single one is chosen without a request.
            limit: How many to choose at most.

        Returns:
            Indices into `candidates`, best first, at least one, at most `limit`, none twice;
            empty where there is no candidate.

        Raises:
            EndpointRefusedError: The endpoint does not know the key, the model or `/rerank`.
            BudgetExhaustedError: A limit of the run is reached.
            ModelError: There is no usable answer after all tries.
        """
        if len(candidates) <= 1:
            return tuple(range(len(candidates)))
        body = {
            "model": self._model,
            "query": question,
            "documents": [_document(candidate) for candidate in candidates],
            "top_n": min(limit, len(candidates)),
        }
        for _ in range(2):
            answer = await self._endpoint.post(_PATH, body, self._model)
            if chosen := _read_ranking(answer, len(candidates)):
                return chosen[:limit]
        raise ModelError(
            f"The reranking model {self._model} scored none of the candidates, asked twice.",
            "See whether the endpoint's /rerank answers with index and relevance_score.",
        )


def _document(candidate: Candidate) -> str:
    return f"{candidate.title}\n{candidate.text}" if candidate.title else candidate.text


def _read_ranking(answer: Any, count: int) -> tuple[int, ...]:
    """Read the candidates' indices, best first. What names none is left out."""
    results = answer.get("results") if isinstance(answer, dict) else None
    scores: dict[int, float] = {}
    for result in results if isinstance(results, list) else ():
        if not isinstance(result, dict):
            continue
        index, score = result.get("index"), result.get("relevance_score")
        if (
            isinstance(index, int)
            and not isinstance(index, bool)
            and 0 <= index < count
            and isinstance(score, int | float)
            and not isinstance(score, bool)
            # Unlike math.isfinite, this takes integers of any length.
            and -math.inf < score < math.inf
        ):
            scores.setdefault(index, score)
    # Servers are free in the order. Equal scores keep the order of the candidates.
    return tuple(sorted(scores, key=lambda index: (-scores[index], index)))
