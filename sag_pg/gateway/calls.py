"""The calls that the gateway answers: understand, choose, embed and status."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np

from sag_pg import __version__
from sag_pg.errors import BudgetExhaustedError, ModelError
from sag_pg.gateway import log, request
from sag_pg.gateway.admission import Admission
from sag_pg.gateway.cache import AnswerCache
from sag_pg.gateway.limits import Limits
from sag_pg.gateway.metrics import CallMetrics
from sag_pg.gateway.refusal import RefusedError, SqlState
from sag_pg.gateway.request import InputType
from sag_pg.gateway.statement import CALLS, Call
from sag_pg.models.base import AsyncEmbeddingModel, Chooser, QuestionReader, Vector
from sag_pg.models.budget import Usage
from sag_pg.text import clean_json

Answer = TypeVar("Answer")

# A component of a unit vector in float32 has no more.
_DECIMALS = 7


@dataclass(frozen=True, slots=True)
class Models:
    """What answers. Each may be missing.

    Attributes:
        embedding: Embeds questions, names and texts.
        reader: Reads the entities off a question.
        chooser: Chooses among candidates.
        chat_model: Name of the language model, for `status`.
        rerank_model: Name of the reranking model, for `status`.
        dimensions: The length of the embeddings, where it is known before there is one.
    """

    embedding: AsyncEmbeddingModel | None = None
    reader: QuestionReader | None = None
    chooser: Chooser | None = None
    chat_model: str | None = None
    rerank_model: str | None = None
    dimensions: int | None = None


@dataclass(slots=True)
class _Run:
    """One call on its way.

    Attributes:
        deadline: Time of the event loop at which it has to end.
        asked: Whether a model had to be asked.
        remembered: Whether something came out of the cache.
        failures: Why parts of the answer are missing, where the others make an answer.
    """

    deadline: float
    asked: bool = False
    remembered: bool = False
    failures: dict[str, RefusedError] = field(default_factory=dict)


class Calls:
    """Answers calls, within limits, and counts them.

    Args:
        models: What answers.
        limits: Bounds of work, time and memory.
        usage: What the models' endpoints have been asked, for `status`.
        count_connections: Tells how many sessions there are, for `status`.
    """

    def __init__(
        self,
        models: Models,
        limits: Limits,
        usage: Usage,
        count_connections: Callable[[], int] = lambda: 0,
    ) -> None:
        self._models = models
        self._limits = limits
        self._usage = usage
        self._count_connections = count_connections
        # Not asked of the model: that of an endpoint may have to embed something to know.
        self._dimensions = models.dimensions
        self._cache = AnswerCache(limits.cache_bytes)
        # Apart, so that no embedding waits for language models, which take a hundred times longer.
        self._embedding_slots = Admission(limits.max_calls, limits.max_queue)
        self._language_slots = Admission(limits.max_calls, limits.max_queue)
        # Texts that are all in the cache cost no model's time, and still a tenth of a second.
        self._encoding = asyncio.Semaphore(1)
        self._metrics = {name: CallMetrics() for name in CALLS}
        self._started = time.monotonic()

    async def answer(self, call: Call, connection: int) -> str:
        """Answer a call. When the task is cancelled, the models' work for it ends.

        Args:
            call: The call.
            connection: Number of the connection, for the log.

        Returns:
            JSON that PostgreSQL can store.

        Raises:
            RefusedError: There is no answer.
        """
        started = time.perf_counter()
        run = _Run(asyncio.get_running_loop().time() + self._limits.call_seconds)
        sqlstate: str | None = SqlState.INTERNAL
        reason = None
        try:
            facts = await self._dispatch(call, run)
            if call.name == "embed":
                # One at a time, in a thread: many clients that ask for much hold nobody else up.
                async with self._encoding:
                    answer = await asyncio.to_thread(_encode, facts)
            else:
                answer = _encode(facts)
            sqlstate = None
            return answer
        except RefusedError as refusal:
            sqlstate = refusal.sqlstate
            reason = _reason(refusal)
            raise
        except asyncio.CancelledError:
            sqlstate = SqlState.QUERY_CANCELED
            raise
        except Exception as error:
            log.fault("internal_error", error, connection=connection, call=call.name)
            # Its cause may hold contents, and nobody shall log it by accident.
            raise RefusedError(SqlState.INTERNAL, "internal error of the gateway") from None
        finally:
            milliseconds = (time.perf_counter() - started) * 1000
            cached = run.remembered and not run.asked
            self._metrics[call.name].record(
                milliseconds,
                is_error=sqlstate is not None or bool(run.failures),
                is_cached=cached,
            )
            log.info(
                "call",
                connection=connection,
                call=call.name,
                ms=round(milliseconds, 3),
                cached=cached,
                sqlstate=sqlstate,
                reason=reason,
                failed_parts=[
                    {"part": part, "sqlstate": failure.sqlstate, "reason": _reason(failure)}
                    for part, failure in run.failures.items()
                ]
                or None,
            )

    async def _dispatch(self, call: Call, run: _Run) -> dict[str, Any]:
        if call.argument is None:
            return self._status()
        match call.name:
            case "understand":
                return await self._understand(request.read_understand(call.argument), run)
            case "choose":
                return await self._choose(request.read_choose(call.argument), run)
            case _:
                return await self._embed(request.read_embed(call.argument), run)

    async def _understand(self, asked: request.UnderstandRequest, run: _Run) -> dict[str, Any]:
        _limit_time(run, asked.timeout_ms)
        embedding = self._models.embedding
        halves: dict[str, Awaitable[Any]] = {}
        if asked.embed and embedding is not None:
            halves["embedding"] = self._vectors([asked.question], "question", run)
        if asked.entities:
            halves["entities"] = self._read_entities(asked.question, asked.embed, run)
        results = await asyncio.gather(*map(_caught, halves.values()))
        outcomes = dict(zip(halves, results, strict=True))
        failures = {part: out for part, out in outcomes.items() if isinstance(out, RefusedError)}
        answers: dict[str, Any] = {
            part: out for part, out in outcomes.items() if part not in failures
        }
        reason = "no embedding model" if asked.embed and embedding is None else None
        if failures and not answers and reason is None:
            raise _joined(list(failures.values()))
        run.failures |= failures
        (vector,) = answers.get("embedding", [None])
        if "embedding" in answers and vector is None:
            reason = "script"
        return {
            "model": embedding.name if embedding is not None else None,
            "dimensions": self._dimensions,
            "embedding": vector,
            "embedding_reason": reason,
            "entities": answers.get("entities", []),
            "warnings": [_warning(part, failure) for part, failure in run.failures.items()],
        }

    async def _read_entities(self, question: str, embed: bool, run: _Run) -> list[dict[str, Any]]:
        """Ask the language model, and embed what it found where that is wanted and possible."""
        reader = self._models.reader
        if reader is None:
            raise _missing("language model", "SAG_PG_CHAT_MODEL")
        names: tuple[str, ...] | None = self._remembered(run, "read", reader.name, question)
        if names is None:
            names = await self._ask(
                self._language_slots, run, lambda: reader.read_question(question)
            )
            size = sum(len(name) * 4 + 50 for name in names)
            self._cache.put(names, size, "read", reader.name, question)
        vectors: Sequence[Vector | None] = [None] * len(names)
        if embed and self._models.embedding is not None:
            # As they are embedded when they are ingested.
            outcome = await _caught(self._vectors(names, "passage", run))
            if isinstance(outcome, RefusedError):
                run.failures["entity_embeddings"] = outcome
            else:
                vectors = outcome
        return [
            {"name": name, "embedding": vector} for name, vector in zip(names, vectors, strict=True)
        ]

    async def _choose(self, asked: request.ChooseRequest, run: _Run) -> dict[str, Any]:
        _limit_time(run, asked.timeout_ms)
        chooser = self._models.chooser
        if chooser is None:
            raise _missing("language model", "SAG_PG_CHAT_MODEL or SAG_PG_RERANK_MODEL")
        if len(asked.candidates) == 1:
            chosen: tuple[int, ...] = (0,)
        else:
            key = (
                "choose",
                chooser.name,
                asked.question,
                tuple((candidate.title, candidate.text) for candidate in asked.candidates),
                asked.limit,
            )
            remembered: tuple[int, ...] | None = self._remembered(run, *key)
            if remembered is not None:
                chosen = remembered
            else:
                chosen = await self._ask(
                    self._language_slots,
                    run,
                    lambda: chooser.choose(asked.question, asked.candidates, asked.limit),
                )
                self._cache.put(chosen, len(chosen) * 32, *key)
        return {"model": chooser.name, "chosen": [index + 1 for index in chosen]}

    async def _embed(self, asked: request.EmbedRequest, run: _Run) -> dict[str, Any]:
        _limit_time(run, asked.timeout_ms)
        if self._models.embedding is None:
            raise _missing("embedding model", "--embedding")
        vectors = await self._vectors(asked.texts, asked.input_type, run)
        return {
            "model": self._models.embedding.name,
            "dimensions": self._dimensions,
            "embeddings": vectors,
        }

    async def _vectors(
        self, texts: Sequence[str], input_type: InputType, run: _Run
    ) -> list[Vector | None]:
        """Embed texts; None for those that are blank or in a script unknown to the model."""
        model = self._models.embedding
        assert model is not None  # noqa: S101
        known = dict.fromkeys(text for text in texts if text.strip() and model.knows(text))
        found: dict[str, Vector] = {}
        for text in known:
            vector = self._remembered(run, input_type, model.name, text)
            if vector is not None:
                found[text] = vector
        new = [text for text in known if text not in found]
        if new:
            embed = (
                model.embed_questions_async
                if input_type == "question"
                else model.embed_passages_async
            )
            rows = await self._ask(self._embedding_slots, run, lambda: embed(new))
            self._dimensions = rows.shape[1]
            for text, row in zip(new, rows, strict=True):
                # A copy: a row of the array would keep all of it in memory.
                found[text] = vector = row.copy()
                self._cache.put(vector, vector.nbytes, input_type, model.name, text)
        return [found.get(text) for text in texts]

    def _remembered(self, run: _Run, *key: Any) -> Any | None:
        value = self._cache.get(*key)
        run.remembered |= value is not None
        return value

    async def _ask(
        self, slots: Admission, run: _Run, work: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Ask a model when it is this call's turn, and tell why where there is no answer."""
        run.asked = True
        try:
            async with asyncio.timeout_at(run.deadline), slots.slot():
                return await work()
        except TimeoutError:
            raise RefusedError(
                SqlState.MODEL_FAILED,
                "the model did not answer in time",
                "Raise gateway_timeout, or --call-timeout of the gateway.",
            ) from None
        except BudgetExhaustedError as error:
            raise RefusedError(SqlState.BUDGET_EXHAUSTED, str(error), error.hint) from error
        except ModelError as error:
            raise RefusedError(SqlState.MODEL_FAILED, str(error), error.hint) from error

    def _status(self) -> dict[str, Any]:
        models = self._models
        slots = (self._embedding_slots, self._language_slots)
        return {
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._started, 1),
            "embedding_model": models.embedding.name if models.embedding is not None else None,
            "dimensions": self._dimensions,
            "chat_model": models.chat_model,
            "rerank_model": models.rerank_model,
            "connections": self._count_connections(),
            "running": sum(kind.running for kind in slots),
            "queued": sum(kind.queued for kind in slots),
            "calls": {name: metrics.as_json() for name, metrics in self._metrics.items()},
            "usage": self._usage.as_dict(),
            "budget": {
                "max_tokens": self._usage.max_tokens,
                "max_requests": self._usage.max_requests,
            },
            "cache_bytes": self._cache.bytes_used,
            "limits": asdict(self._limits),
        }


async def _caught(work: Awaitable[Answer]) -> Answer | RefusedError:
    """Await one half of a call, so that its failure is not the other half's."""
    try:
        return await work
    except RefusedError as refusal:
        return refusal
    except Exception as error:
        log.fault("internal_error", error)
        return RefusedError(SqlState.INTERNAL, "internal error of the gateway")


def _limit_time(run: _Run, timeout_ms: int | None) -> None:
    if timeout_ms is not None:
        run.deadline = min(run.deadline, asyncio.get_running_loop().time() + timeout_ms / 1000)


def _missing(kind: str, setting: str) -> RefusedError:
    return RefusedError(
        SqlState.NO_SUCH_MODEL,
        f"the gateway has no {kind}",
        f"Start sag-pg serve with {setting} set.",
    )


def _warning(part: str, refusal: RefusedError) -> dict[str, Any]:
    """What a part of an answer is missing for, in the words of an error."""
    return {
        "part": part,
        "sqlstate": refusal.sqlstate.value,
        "message": str(refusal),
        "hint": refusal.hint,
    }


def _joined(failures: Sequence[RefusedError]) -> RefusedError:
    """One refusal that has the words of all. Code and hint are those of the first."""
    first = failures[0]
    joined = RefusedError(first.sqlstate, "; ".join(dict.fromkeys(map(str, failures))), first.hint)
    joined.__cause__ = first.__cause__
    return joined


def _reason(refusal: RefusedError) -> str | None:
    """What may be logged of a refusal: its kind. A model's message may repeat contents."""
    return type(refusal.__cause__).__name__ if refusal.__cause__ is not None else None


def _encode(facts: dict[str, Any]) -> str:
    """Write an answer, whose vectors are arrays still."""
    return json.dumps(clean_json(facts), ensure_ascii=False, default=_numbers)


def _numbers(vector: Vector) -> list[float]:
    numbers: list[float] = np.round(vector.astype(np.float64), _DECIMALS).tolist()
    return numbers
