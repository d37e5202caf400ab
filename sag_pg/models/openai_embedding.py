"""Embeddings from an OpenAI-compatible endpoint."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sag_pg.errors import EndpointRefusedError, InputRejectedError, ModelError
from sag_pg.models.background_loop import background_loop
from sag_pg.models.base import Vector
from sag_pg.models.endpoint import Endpoint, RequestRejectedError
from sag_pg.models.prefixes import prefixes_of
from sag_pg.models.scripts import LATIN, is_known

_PATH = "/embeddings"

# Models that say in their name that they know English only, such as bge-small-en-v1.5. Of others
# nothing is known, and most are multilingual.
_ENGLISH_ONLY = re.compile(r"(?<![a-z])en(?![a-z])")

# Servers limit the tokens of a text, the tokens of a request and the number of texts, each at
# its own place and in its own words.
_TOO_LARGE = re.compile(
    r"too (long|large|many)|context length|maximum|max_|less than|larger than|exceed|at most"
    r"|batch.?size",
    re.IGNORECASE,
)
_TOO_MANY = re.compile(r"batch|too many|array", re.IGNORECASE)
_DIMENSIONS = re.compile(r"dimension|matryoshka", re.IGNORECASE)

# A text that is refused for its length at fewer characters than that is refused for another reason.
_MIN_CHARACTERS = 250


class _UnusableAnswerError(ValueError):
    """Why the vectors of an answer cannot be used."""


class _NoDirectionError(_UnusableAnswerError):
    """The model has no vector for one of the texts."""


class OpenAIEmbedding:
    """An embedding model at an endpoint. Threads and event loops may share one.

    Texts go in batches of `embedding_batch`, as many at once as the endpoint allows, cut at
    `embedding_max_characters`. A batch stays a batch when it is sent again. A batch that the
    server finds too large is sent in halves, and a single text that it finds too long is cut.

    Args:
        endpoint: Where the model is.
        model: Its name there.
    """

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint = endpoint
        self._model = model
        self._question_prefix, self._passage_prefix = prefixes_of(model)
        self._scripts = (
            frozenset({LATIN}) if _ENGLISH_ONLY.search(model.lower().rpartition("/")[2]) else None
        )
        self._requested_dimensions = endpoint.settings.embedding_dimensions
        self._dimensions = self._requested_dimensions
        self._batch = endpoint.settings.embedding_batch
        self._max_characters = endpoint.settings.embedding_max_characters

    @property
    def name(self) -> str:
        """The name that the database keeps. The dimensions stand beside it there."""
        return f"openai:{self._model}"

    @property
    def dimensions(self) -> int:
        """The length of each vector.

        Where the settings do not say it and nothing was embedded yet, one word is embedded to
        find out, which blocks; on an event loop await `find_dimensions` first.

        Raises:
            ModelError: There is no usable answer.
        """
        return self._dimensions or background_loop.run(self.find_dimensions())

    async def find_dimensions(self) -> int:
        """The length of each vector, found out as in `dimensions`.

        Raises:
            ModelError: There is no usable answer.
        """
        if self._dimensions is None:
            await self._embed("", ["dimensions"])
        assert self._dimensions is not None  # noqa: S101 - set by the answer
        return self._dimensions

    def knows(self, text: str) -> bool:
        """Whether the text is mainly in a script that the model was trained on.

        That is known only of models whose name says that they are English; all others are taken
        to know every script.
        """
        return is_known(text, self._scripts)

    def embed_passages(self, texts: Sequence[str]) -> Vector:
        """As `embed_passages_async`, waiting for the answer."""
        return background_loop.run(self.embed_passages_async(texts))

    def embed_question(self, text: str) -> Vector:
        """As `embed_questions_async` for one question, waiting for the answer.

        Returns:
            Float32 array of shape (dimensions,) and length 1.
        """
        vector: Vector = background_loop.run(self.embed_questions_async([text]))[0]
        return vector

    async def embed_passages_async(self, texts: Sequence[str]) -> Vector:
        """Embed texts to be found.

        Args:
            texts: Each with at least one character that is no white space.

        Returns:
            Float32 array of shape (len(texts), dimensions), rows of length 1.

        Raises:
            EndpointRefusedError: The endpoint does not know the key, the model or the dimensions
                that the settings ask for.
            BudgetExhaustedError: A limit of the run is reached.
            InputRejectedError: The endpoint or the model takes one of the texts for no text.
            ModelError: A text is blank, or there is no usable answer after all tries.
        """
        return await self._embed(self._passage_prefix, texts)

    async def embed_questions_async(self, texts: Sequence[str]) -> Vector:
        """Embed questions. Arguments, result and errors as in `embed_passages_async`."""
        return await self._embed(self._question_prefix, texts)

    async def _embed(self, prefix: str, texts: Sequence[str]) -> Vector:
        if not texts:
            return np.empty((0, await self.find_dimensions()), dtype=np.float32)
        # OpenAI refuses the whole batch for one blank text; elsewhere its vector means nothing.
        blank = next((place for place, text in enumerate(texts, 1) if not text.strip()), None)
        if blank is not None:
            raise ModelError(
                f"Text {blank} of {len(texts)} is blank and has no embedding.",
                "Embed texts that have at least one character.",
            )
        inputs = [prefix + text[: self._max_characters] for text in texts]
        batches = [
            asyncio.ensure_future(self._embed_batch(inputs[start : start + self._batch]))
            for start in range(0, len(inputs), self._batch)
        ]
        try:
            return np.concatenate(await asyncio.gather(*batches))
        finally:
            # After an error, whose vectors would be for nothing, requests still wait.
            for batch in batches:
                batch.cancel()
            await asyncio.gather(*batches, return_exceptions=True)

    async def _embed_batch(self, inputs: Sequence[str]) -> Vector:
        """Embed the texts of one request; of several, where the server finds them too large."""
        try:
            return await self._request(inputs)
        except RequestRejectedError as error:
            if error.status != 413 and not _TOO_LARGE.search(error.server_words):
                raise
            rejection = error
        if len(inputs) > 1:
            middle = len(inputs) // 2
            if _TOO_MANY.search(rejection.server_words):
                self._batch = min(self._batch, middle)
            # One after the other: where the first half is refused for good, the second is not sent.
            return np.concatenate(
                [await self._embed_batch(inputs[:middle]), await self._embed_batch(inputs[middle:])]
            )
        if len(inputs[0]) < 2 * _MIN_CHARACTERS:
            raise rejection
        return await self._embed_batch([inputs[0][: len(inputs[0]) // 2]])

    async def _request(self, inputs: Sequence[str]) -> Vector:
        body: dict[str, Any] = {"model": self._model, "input": list(inputs)}
        # Servers refuse parameters that they do not know. `encoding_format` is left out too: what
        # is meant without it is plain numbers, and some servers know no other.
        if self._requested_dimensions is not None:
            body["dimensions"] = self._requested_dimensions
        for _ in range(2):
            answer = await self._post(body)
            try:
                vectors = _read_vectors(answer, len(inputs), self._dimensions)
            except _UnusableAnswerError as error:
                fault = error
            else:
                self._dimensions = vectors.shape[1]
                return vectors
        kind = InputRejectedError if isinstance(fault, _NoDirectionError) else ModelError
        raise kind(
            f"The embedding model {self._model} gave no usable vectors, asked twice: {fault}.",
            "See which model the endpoint serves under that name; it must keep to one length.",
        )

    async def _post(self, body: Mapping[str, Any]) -> Any:
        try:
            return await self._endpoint.post(_PATH, body, self._model)
        except RequestRejectedError as error:
            if "dimensions" not in body or not _DIMENSIONS.search(error.server_words):
                raise
            rejection = error
        raise EndpointRefusedError(
            f"The embedding model {self._model} cannot give vectors of the length "
            f"{self._requested_dimensions} that was asked for. {rejection}",
            "Unset SAG_PG_EMBEDDING_DIMENSIONS to use the model's own length.",
        )


def _read_vectors(answer: Any, count: int, dimensions: int | None) -> Vector:
    """Check the vectors of an answer and put them in the order of the texts.

    Args:
        answer: `{"data": [{"index": int, "embedding": [float]}]}`.
        count: How many were asked for.
        dimensions: The length that is known; None where any will do.

    Raises:
        _UnusableAnswerError: They cannot be used.
    """
    try:
        entries = list(answer["data"])
        places = [entry.get("index") for entry in entries]
        # Some servers leave the index out; then the order is that of the texts.
        if any(place is not None for place in places):
            entries = [entry for _, entry in sorted(zip(places, entries, strict=True), key=_place)]
        rows = [np.asarray(entry["embedding"], dtype=np.float64) for entry in entries]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise _UnusableAnswerError("the answer does not hold them as it should") from None
    if len(rows) != count or {*places} not in ({None}, {*range(count)}):
        raise _UnusableAnswerError(f"{len(rows)} came for {count} texts, or in no known order")
    shapes = {row.shape for row in rows}
    if len(shapes) != 1 or rows[0].ndim != 1 or not rows[0].size:
        raise _UnusableAnswerError("they differ in their length")
    length = rows[0].size
    if dimensions is not None and length != dimensions:
        raise _UnusableAnswerError(f"they have the length {length}, not {dimensions}")
    vectors = np.stack(rows)
    norms = np.linalg.norm(vectors, axis=1)
    if not np.isfinite(norms).all() or not norms.all():
        raise _NoDirectionError("one of them is zero or not a number")
    unit: Vector = (vectors / norms[:, np.newaxis]).astype(np.float32)
    return unit


def _place(placed: tuple[Any, Any]) -> int:
    return int(placed[0])
