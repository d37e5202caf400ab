"""Evaluation of retrieval on multi-hop question sets.

A passage is one document, one chunk and one event; or, for comparison, each (subject, predicate,
object) that was extracted from it is.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, quantiles
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from pgvector import HalfVector

from sag_pg.client import Client
from sag_pg.dataset import Dataset
from sag_pg.errors import ConfigurationError, LoadError, ModelError
from sag_pg.ingest.job import Progress, ingest
from sag_pg.ingest.loaders import load_paths
from sag_pg.ingest.report import Report
from sag_pg.models.base import EmbeddingModel, Extractor
from sag_pg.models.budget import Usage
from sag_pg.triples import Triples, passage_of

P = ParamSpec("P")
T = TypeVar("T")

METHODS: Final = ("vector", "lexical", "hybrid", "sag", "gateway")
# Those that need nothing but the database and an embedding model.
PLAIN_METHODS: Final = METHODS[:-1]
RECALL_DEPTHS: Final = (1, 2, 5, 10)
ALL_GOLD_DEPTHS: Final = (5, 10)
COVERAGE_DEPTHS: Final = (20, 50, 100)
_FLOOR_ROWS: Final = 100
_RESULT_ROWS: Final = 10
# A passage has ten triples or so, so that ten passages take many of them.
_TRIPLE_ROWS: Final = 200
# Before plans are cached and pages read, a session is slower than it will ever be again.
_WARM_UP_QUESTIONS: Final = 6
# The gateway remembers answers, and a remembered one would make a latency look better.
_WITHOUT_GATEWAY: Final = {"understand": "sql", "choose": "rank"}


def prepare_collection(
    client: Client,
    dataset: Dataset,
    extractor: Extractor,
    embedding_model: EmbeddingModel | None,
    usage: Usage | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
    triples: Triples | None = None,
) -> tuple[str, Report | None]:
    """Ingest the passages into a collection of their own, unless they are there.

    Without an embedding model a collection that has embeddings serves as well, for lexical
    retrieval does not look at them. Embeddings of two models cannot meet: a database has those of
    one.

    Args:
        client: A client of any collection.
        dataset: The question set.
        extractor: Finds events and entities.
        embedding_model: Embeds the events; None for lexical retrieval alone.
        usage: What the models count with.
        progress: As for `sag_pg.ingest.job.ingest`.
        triples: What takes the passages' place, with its own extractor; None for the passages.

    Returns:
        The collection's name, which the passages and the extractor determine, and what the
        ingest did, which is nothing for passages that are there; None where it was not asked.

    Raises:
        LoadError: A passage could not be ingested.
        ModelError: The budget did not last for all passages, or a model is down. Those that are in
            stay, and the language model's answers for others.
    """
    key = hashlib.sha256(f"{dataset.digest} {extractor.name}".encode()).hexdigest()[:12]
    name = f"eval {dataset.name} {'triples ' if triples is not None else ''}{key}"
    wanted = dataset.passages if triples is None else len(triples)
    if embedding_model is None:
        for held in client.collections():
            if held.collection == name and held.documents == wanted:
                return name, None
    client.create_collection(name)
    report = ingest(
        client.connection,
        load_paths([str(dataset.corpus)]) if triples is None else triples.documents(),
        collection=name,
        extractor=extractor,
        embedding_model=embedding_model,
        max_characters=None,
        usage=usage,
        progress=progress,
    )
    if report.stopped is not None:
        raise ModelError(
            f"{report.stopped} {report.added + report.replaced} passages were ingested before.",
            "Run the same command again to go on, without paying twice; an evaluation needs all"
            " passages.",
        )
    if report.failed:
        raise LoadError(
            f"{report.failed} passages could not be ingested; what failed first:"
            f" {report.failures[0]}",
            "Mend the corpus; an evaluation without all passages says nothing.",
        )
    return name, report


def check_methods(methods: Sequence[str], embedding_model: EmbeddingModel | None) -> None:
    """Make sure that methods can be asked.

    Raises:
        ConfigurationError: A method needs an embedding model and there is none.
    """
    if embedding_model is None and (wanting := set(methods) & {"vector", "hybrid"}):
        raise ConfigurationError(
            f"Method {min(wanting)} needs an embedding model.",
            "Give --embedding, or only --method lexical and --method sag.",
        )


def check_gateway(client: Client, methods: Sequence[str]) -> bool:
    """Make sure that a gateway answers, where a method is to ask it.

    Returns:
        Whether one answers.

    Raises:
        ConfigurationError: The method "gateway" was asked for, and none does.
    """
    answers: bool = client.gateway_status()["answering"]
    if "gateway" in methods and not answers:
        raise ConfigurationError(
            "No gateway answers.", "Run sag-pg gateway install once, and sag-pg serve beside this."
        )
    return answers


def evaluate(
    client: Client,
    dataset: Dataset,
    collection: str,
    *,
    methods: Sequence[str] = PLAIN_METHODS,
    embedding_model: EmbeddingModel | None = None,
    options: Mapping[str, Any] | None = None,
    usage: Usage | None = None,
    progress: Callable[[int], None] = lambda done: None,
    triples: Triples | None = None,
) -> dict[str, Any]:
    """Ask all questions by all methods, in turn, so that the machine's moods meet them alike.

    Args:
        client: A client without embedding model of its own; vectors are made here, so that
            latency is the database's.
        dataset: The question set.
        collection: The collection that holds its passages.
        methods: Some of `METHODS`. "gateway" is "sag" as a plain SQL client asks it, with the
            question alone: what it takes longer is the way to the gateway and the model there.
        embedding_model: Embeds the questions; "vector" and "hybrid" cannot be asked without one.
        options: Retrieval parameters for "sag".
        usage: What the embedding model counts with.
        progress: Told the number of questions done.
        triples: What the collection holds in place of passages; None for passages. Each method is
            then asked for 200 triples ("sag" by `output_limit` and `candidate_limit`, where
            `options` do not say other), which are traced to their passages, each counted once
            where it first comes. On the set musique that is 28 passages or more for every
            question, where recall asks for ten.

    Returns:
        The object that `sag-pg eval --json` prints; recalls and coverages are in percent,
        latencies in milliseconds. Recall is the fraction of the gold passages found, averaged over
        questions, as in HippoRAG's and SAG's reference implementations. Model calls and tokens
        are those of the questions' embedding and of the gateway, whoever else asks it.

    Raises:
        ConfigurationError: A method needs an embedding model or the gateway.
    """
    check_methods(methods, embedding_model)
    rows = _RESULT_ROWS
    if triples is not None:
        rows = _TRIPLE_ROWS
        options = {"output_limit": rows, "candidate_limit": rows, **(options or {})}
    tallies = {method: _Tally() for method in methods}
    floors: list[float] = []
    plain = Client(client.connection, collection=collection)
    for question in dataset.questions[:_WARM_UP_QUESTIONS]:
        vector = _embed(embedding_model, question.question)
        for method in methods:
            warm = {**(options or {}), **_WITHOUT_GATEWAY}
            _ask(plain, method, question.question, vector, warm, rows)
    has_gateway = check_gateway(plain, methods)
    for done, question in enumerate(dataset.questions, 1):
        tokens_before = usage.tokens if usage is not None else 0
        vector = _embed(embedding_model, question.question)
        embedding_tokens = usage.tokens - tokens_before if usage is not None else 0
        if vector is not None:
            floors.append(_timed(_floor, plain, vector)[1])
        for method in methods:
            tally = tallies[method]
            before = _gateway_use(plain) if has_gateway else _NO_USE
            sources, elapsed = _timed(_ask, plain, method, question.question, vector, options, rows)
            after = _gateway_use(plain) if has_gateway else _NO_USE
            tally.latencies.append(elapsed)
            tally.model_calls += after.requests - before.requests
            tally.tokens += after.tokens - before.tokens
            tally.cached += after.cached - before.cached
            if vector is not None and method not in ("lexical", "gateway"):
                tally.model_calls += 1
                tally.tokens += embedding_tokens
            stages = _stages(plain, method, question.question, vector, options, rows)
            if triples is not None:
                sources = _distinct_passages(sources)
                stages = {stage: _distinct_passages(found) for stage, found in stages.items()}
            tally.add_result(question.supporting, sources)
            tally.add_coverage(question.supporting, stages)
        progress(done)
    floor = _percentile(floors, 50) if floors else None
    return {
        "dataset": dataset.name,
        "questions": len(dataset.questions),
        "passages": dataset.passages,
        "triples": len(triples) if triples is not None else None,
        "embedding": embedding_model.name if embedding_model is not None else None,
        "options": dict(options or {}),
        "methods": {method: tallies[method].summary(floor) for method in methods},
    }


class _Tally:
    def __init__(self) -> None:
        self.recalls: defaultdict[int, list[float]] = defaultdict(list)
        self.all_gold: defaultdict[int, list[float]] = defaultdict(list)
        self.coverages: defaultdict[int, list[float]] = defaultdict(list)
        self.stages: defaultdict[str, list[float]] = defaultdict(list)
        self.latencies: list[float] = []
        self.model_calls = 0
        self.tokens = 0
        self.cached = 0

    def add_result(self, gold: frozenset[str], sources: Sequence[str]) -> None:
        for depth in RECALL_DEPTHS:
            self.recalls[depth].append(_fraction(gold, sources[:depth]))
        for depth in ALL_GOLD_DEPTHS:
            self.all_gold[depth].append(float(gold <= set(sources[:depth])))

    def add_coverage(self, gold: frozenset[str], stages: Mapping[str, Sequence[str]]) -> None:
        for depth in COVERAGE_DEPTHS:
            self.coverages[depth].append(_fraction(gold, stages["candidates"][:depth]))
        for stage, sources in stages.items():
            if stage != "candidates":
                self.stages[stage].append(_fraction(gold, sources))

    def summary(self, floor: float | None) -> dict[str, Any]:
        return {
            "recall": _percents(self.recalls),
            "all_gold": _percents(self.all_gold),
            "coverage": _percents(self.coverages),
            "stages": _percents(self.stages),
            "latency_ms": {
                "p50": _percentile(self.latencies, 50),
                "p95": _percentile(self.latencies, 95),
                "floor_p50": floor,
            },
            "model_calls": self.model_calls,
            "tokens": self.tokens,
            "cached": self.cached,
        }


class _GatewayUse(NamedTuple):
    """What the gateway's models were asked so far, and what it remembered instead."""

    requests: int
    tokens: int
    cached: int


_NO_USE: Final = _GatewayUse(0, 0, 0)


def _gateway_use(client: Client) -> _GatewayUse:
    facts = client.gateway_status()
    if not facts["answering"]:
        return _NO_USE
    status = facts["status"]
    usage = status["usage"]
    return _GatewayUse(
        usage["requests"],
        usage["prompt_tokens"] + usage["completion_tokens"],
        sum(call["cache_hits"] for call in status["calls"].values()),
    )


def _embed(model: EmbeddingModel | None, question: str) -> HalfVector | None:
    if model is None or not model.knows(question):
        return None
    return HalfVector(model.embed_question(question))


def _ask(
    client: Client,
    method: str,
    question: str,
    vector: HalfVector | None,
    options: Mapping[str, Any] | None,
    rows: int,
) -> list[str]:
    if method in ("sag", "gateway"):
        found = client.retrieve(question, **_arguments(method, vector, options))
        return [evidence.source for evidence in found]
    return [
        hit.source for hit in client.search(question, method=method, embedding=vector, limit=rows)
    ]


def _arguments(
    method: str, vector: HalfVector | None, options: Mapping[str, Any] | None
) -> dict[str, Any]:
    if method == "sag":
        return {"embedding": vector, "options": options}
    # By name, lest the client says that nobody is to embed the question.
    return {"options": {"understand": "embedding", **(options or {})}}


def _stages(
    client: Client,
    method: str,
    question: str,
    vector: HalfVector | None,
    options: Mapping[str, Any] | None,
    rows: int,
) -> dict[str, list[str]]:
    """Sources after each stage; "candidates" are those that a choice would be made from."""
    if method not in ("sag", "gateway"):
        limit = max(rows, *COVERAGE_DEPTHS)
        hits = client.search(question, method=method, embedding=vector, limit=limit)
        return {"candidates": [hit.source for hit in hits]}
    stages: dict[str, list[str]] = defaultdict(list)
    for row in client.trace(question, **_arguments(method, vector, options)):
        if row.source is not None:
            stages[row.stage].append(row.source)
    return {
        "candidates": stages["rank_events"],
        "seed_events": stages["seed_events"],
        "expand_events": stages["seed_events"] + stages["expand_events"],
        "rank_events": stages["rank_events"],
        "merge_chunks": stages["merge_chunks"],
    }


def _distinct_passages(sources: Sequence[str]) -> list[str]:
    """The passages of triples, each where its first triple is."""
    return list(dict.fromkeys(map(passage_of, sources)))


def _floor(client: Client, vector: HalfVector) -> None:
    client.connection.execute(
        "SELECT event_id FROM sag.nearest_events(%s, %s)", [vector, _FLOOR_ROWS]
    ).fetchall()


def _timed(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    started = time.perf_counter()
    result = call(*args, **kwargs)
    return result, (time.perf_counter() - started) * 1000


def _fraction(gold: frozenset[str], sources: Iterable[str]) -> float:
    return len(gold.intersection(sources)) / len(gold)


def _percents(values: Mapping[Any, list[float]]) -> dict[str, float]:
    return {str(key): round(100 * fmean(found), 1) for key, found in values.items()}


def _percentile(values: Sequence[float], percent: int) -> float:
    if len(values) == 1:
        return round(values[0], 2)
    return round(quantiles(values, n=100, method="inclusive")[percent - 1], 2)
