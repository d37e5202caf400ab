"""The command that measures retrieval on question sets."""

import json
from pathlib import Path
from typing import Any

import click

from sag_pg import evaluate as evaluation
from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.ingest import ProgressLine
from sag_pg.cli.options import (
    NO_EMBEDDING,
    embedding_option,
    extractor_option,
    json_option,
    load_embedding,
    merge_parameters,
    set_option,
)
from sag_pg.client import Client


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--method",
    "methods",
    type=click.Choice(evaluation.METHODS),
    multiple=True,
    help="Repeatable; all that are possible by default.",
)
@embedding_option
@extractor_option
@click.option("--limit", type=click.IntRange(min=1), help="Take the first questions only.")
@click.option("--hops", type=int, help="Hops of the expansion, 0 to 4.")
@click.option("--ranking", help="evidence or similarity.")
@set_option
@json_option
@pass_application
def eval(
    application: Application,
    directory: Path,
    methods: tuple[str, ...],
    embedding: str,
    extractor: str,
    limit: int | None,
    hops: int | None,
    ranking: str | None,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Measure recall and latency on a question set.

    DIRECTORY holds corpus.jsonl and questions.jsonl. The passages go into a collection of their
    own, which the next run on the same corpus finds ready.
    """
    from sag_pg.models.local_extraction import load_extractor

    dataset = evaluation.load_dataset(directory, limit)
    model = load_embedding(embedding)
    if not methods:
        methods = evaluation.METHODS if model is not None else ("lexical", "sag")
    evaluation.check_methods(methods, model)
    options = merge_parameters(options, hops=hops, ranking=ranking)
    with application.connect_ready() as connection:
        client = Client(connection)
        # Before an ingest that takes minutes, not after it.
        client.check_options(options)
        with ProgressLine(dataset.corpus.stat().st_size) as line:
            collection, report = evaluation.prepare_collection(
                client, dataset, load_extractor(extractor), model, line.show
            )
        if report is not None:
            message(report.summary())
        message(f"Asking {len(dataset.questions)} questions of collection {collection!r}")
        result = evaluation.evaluate(
            client,
            dataset,
            collection,
            methods=methods,
            embedding_model=model,
            options=options,
        )
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
    else:
        _print_table(result)


def _print_table(result: dict[str, Any]) -> None:
    embedding = result["embedding"] or NO_EMBEDDING
    click.echo(
        f"{result['dataset']}: {result['questions']} questions, {result['passages']} passages,"
        f" embedding {embedding}"
    )
    depths = [f"R@{depth}" for depth in evaluation.RECALL_DEPTHS]
    depths += [f"all@{depth}" for depth in evaluation.ALL_GOLD_DEPTHS]
    depths += [f"cov@{depth}" for depth in evaluation.COVERAGE_DEPTHS]
    click.echo("".join([f"{'method':<9}", *(f"{name:>8}" for name in [*depths, "p50", "p95"])]))
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
        )
    for measured in result["methods"].values():
        if measured["stages"]:
            stages = ", ".join(f"{stage} {value}" for stage, value in measured["stages"].items())
            click.echo(f"gold after each stage of sag, %: {stages}")
    floor = next(iter(result["methods"].values()))["latency_ms"]["floor_p50"]
    if floor is not None:
        click.echo(f"bare HNSW top-100 on the same table: p50 {floor:.1f} ms")
    click.echo("recall (R), all gold found (all) and gold among the candidates (cov) in %,")
    click.echo("latency of the SQL in ms, without embedding the question")
