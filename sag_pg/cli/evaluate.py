"""The command that measures retrieval on question sets."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from sag_pg import evaluate as evaluation
from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.options import (
    NO_EMBEDDING,
    choose_option,
    embedding_option,
    extractor_option,
    ingest_model_options,
    json_option,
    load_embedding,
    merge_parameters,
    set_option,
)
from sag_pg.cli.progress import ProgressLine
from sag_pg.client import Client
from sag_pg.dataset import Dataset, load_dataset
from sag_pg.errors import ConfigurationError
from sag_pg.ingest.report import Report
from sag_pg.models.base import Extractor
from sag_pg.models.budget import Usage
from sag_pg.models.settings import ModelSettings
from sag_pg.recorded_extraction import RecordedExtractor, load_recorded
from sag_pg.triples import Triples

_MOST_FAILURES: Final = 20
# In place of an extractor: what a language model once extracted, kept with the data set.
_RECORDED: Final = "recorded"
_EVENTS: Final = "events"
_TRIPLES: Final = "triples"


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--method",
    "methods",
    type=click.Choice(evaluation.METHODS),
    multiple=True,
    help="Repeatable; all but gateway that are possible by default. gateway is sag as a plain SQL"
    " client asks it, with the question alone.",
)
@embedding_option
@extractor_option
@click.option(
    "--index",
    type=click.Choice((_EVENTS, _TRIPLES)),
    default=_EVENTS,
    show_default=True,
    help="What is stored: one event a passage or, to compare with, one record for each recorded"
    " (subject, predicate, object).",
)
@click.option("--limit", type=click.IntRange(min=1), help="Take the first questions only.")
@click.option("--hops", type=int, help="Hops of the expansion, 0 to 4.")
@click.option("--ranking", help="evidence or similarity.")
@choose_option
@set_option
@json_option
@ingest_model_options
@pass_application
def eval(
    application: Application,
    directory: Path,
    methods: tuple[str, ...],
    embedding: str,
    extractor: str,
    index: str,
    limit: int | None,
    hops: int | None,
    ranking: str | None,
    choose: str | None,
    options: dict[str, Any],
    settings: ModelSettings,
    as_json: bool,
) -> None:
    """Measure recall and latency on a question set.

    DIRECTORY holds corpus.jsonl and questions.jsonl. The passages go into a collection of their
    own, which the next run on the same corpus with the same extractor finds ready. The questions
    are embedded here; --choose model and --set understand=model go through the database's gateway.

    Where DIRECTORY holds extraction.jsonl, --extractor recorded takes the entities of that, and
    --index triples its triples. Recall is by passage in any case.
    """
    dataset = load_dataset(directory, limit)
    triples = _load_triples(dataset, extractor) if index == _TRIPLES else None
    usage = Usage(settings.max_tokens, settings.max_requests)
    model = load_embedding(embedding, settings, usage)
    if not methods:
        methods = evaluation.PLAIN_METHODS if model is not None else ("lexical", "sag")
    evaluation.check_methods(methods, model)
    options = merge_parameters(options, hops=hops, ranking=ranking, choose=choose)
    with application.connect_ready() as connection:
        client = Client(connection)
        # Before an ingest that takes minutes, not after it.
        client.check_options(options)
        evaluation.check_gateway(client, methods)
        found_by: Extractor
        if triples is not None:
            found_by = triples
        else:
            found_by = _load_extractor(extractor, dataset, settings, usage, client)
        size = dataset.corpus.stat().st_size if triples is None else triples.size
        with ProgressLine(size) as line:
            collection, report = evaluation.prepare_collection(
                client,
                dataset,
                found_by,
                model,
                usage,
                line.show,
                triples,
            )
        if report is not None:
            message(report.summary())
            for failure in report.failures[:_MOST_FAILURES]:
                message(f"Failed: {failure}")
        message(f"Asking {len(dataset.questions)} questions of collection {collection!r}")
        result = evaluation.evaluate(
            client,
            dataset,
            collection,
            methods=methods,
            embedding_model=model,
            options=options,
            usage=usage,
            triples=triples,
        )
    result["extractor"] = extractor if triples is None else _RECORDED
    result["ingest"] = _ingest_facts(report) if report is not None else None
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
    else:
        _print_table(result)


def _load_triples(dataset: Dataset, extractor: str) -> Triples:
    source = click.get_current_context().get_parameter_source("extractor")
    if extractor != _RECORDED and source is not ParameterSource.DEFAULT:
        raise ConfigurationError(
            f"Triples are not extracted by {extractor}.",
            "They are those of extraction.jsonl. Leave out --extractor, or say recorded.",
        )
    return Triples(load_recorded(dataset))


def _load_extractor(
    spec: str, dataset: Dataset, settings: ModelSettings, usage: Usage, client: Client
) -> Extractor:
    from sag_pg.models.load import load_extractor

    if spec == _RECORDED:
        return RecordedExtractor(dataset, load_recorded(dataset))
    return load_extractor(spec, settings, usage, client.entity_types())


def _ingest_facts(report: Report) -> dict[str, Any]:
    facts = asdict(report)
    names = ("added", "replaced", "unchanged", "failed_chunks", "usage", "seconds")
    return {name: facts[name] for name in names}


def _print_table(result: dict[str, Any]) -> None:
    embedding = result["embedding"] or NO_EMBEDDING
    triples = f" {result['triples']} triples," if result["triples"] is not None else ""
    click.echo(
        f"{result['dataset']}: {result['questions']} questions, {result['passages']} passages,"
        f"{triples} embedding {embedding}"
    )
    depths = [f"R@{depth}" for depth in evaluation.RECALL_DEPTHS]
    depths += [f"all@{depth}" for depth in evaluation.ALL_GOLD_DEPTHS]
    depths += [f"cov@{depth}" for depth in evaluation.COVERAGE_DEPTHS]
    click.echo(
        "".join(
            [
                f"{'method':<9}",
                *(f"{name:>8}" for name in [*depths, "p50", "p95", "calls", "tokens"]),
            ]
        )
    )
    for method, measured in result["methods"].items():
        numbers = [
            *measured["recall"].values(),
            *measured["all_gold"].values(),
            *measured["coverage"].values(),
        ]
        latency = measured["latency_ms"]
        click.echo(
            f"{method:<9}"
            + "".join(f"{number:>8.1f}" for number in numbers)
            + f"{latency['p50']:>8.1f}{latency['p95']:>8.1f}"
            + f"{measured['model_calls']:>8}{measured['tokens']:>8}"
        )
    for method, measured in result["methods"].items():
        if measured["stages"]:
            stages = ", ".join(f"{stage} {value}" for stage, value in measured["stages"].items())
            click.echo(f"gold after each stage of {method}, %: {stages}")
        if measured["cached"] or method == "gateway":
            click.echo(f"answers to {method} that the gateway remembered: {measured['cached']}")
    floor = next(iter(result["methods"].values()))["latency_ms"]["floor_p50"]
    if floor is not None:
        click.echo(f"bare HNSW top-100 on the same table: p50 {floor:.1f} ms")
    click.echo("recall (R), all gold found (all) and gold among the candidates (cov) in %,")
    click.echo("latency of the SQL in ms, without embedding the question here; calls of models and")
    click.echo("tokens for all questions")
