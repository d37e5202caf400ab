"""The commands that read: retrieve, trace, search."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, TypeVar

import click

from sag_pg.cli import options as shared
from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.layout import (
    columns_of,
    cut,
    one_line,
    pad,
    printable,
    shorten,
    terminal_columns,
    wrap,
)
from sag_pg.cli.session import open_client
from sag_pg.client import GATEWAY, Client, Evidence, SearchHit, TraceRow
from sag_pg.models.settings import ModelSettings

EXCERPT_LINES = 3

T = TypeVar("T")


def _retrieval(command: Callable[..., T]) -> Callable[..., T]:
    """Add what retrieve and trace are asked with; they get all parameters in `options`."""

    @functools.wraps(command)
    def with_options(
        *args: Any,
        limit: int | None,
        hops: int | None,
        ranking: str | None,
        choose: str | None,
        options: dict[str, Any],
        **kwargs: Any,
    ) -> T:
        merged = shared.merge_parameters(
            options, output_limit=limit, hops=hops, ranking=ranking, choose=choose
        )
        return command(*args, options=merged, **kwargs)

    for decorate in reversed(
        (
            shared.question_argument,
            shared.collection_option,
            click.option(
                "--entity",
                "entities",
                multiple=True,
                metavar="NAME",
                help="An entity of the question, in addition to those read from it. Repeatable.",
            ),
            shared.filter_option,
            click.option("--limit", type=int, metavar="N", help="Chunks to return (output_limit)."),
            click.option("--hops", type=int, metavar="N", help="Hops to follow."),
            click.option("--ranking", metavar="NAME", help="evidence or similarity."),
            shared.choose_option,
            shared.set_option,
            shared.question_embedding_option,
            shared.json_option,
            shared.question_model_options,
        )
    ):
        with_options = decorate(with_options)
    return with_options


@click.command()
@_retrieval
@click.option("--full", is_flag=True, help="Print whole chunks rather than excerpts.")
@pass_application
def retrieve(
    application: Application,
    question: str,
    collection: str,
    entities: tuple[str, ...],
    filter_: str | None,
    options: dict[str, Any],
    embedding: str,
    settings: ModelSettings,
    as_json: bool,
    full: bool,
) -> None:
    """Find the evidence for QUESTION, best first; - reads it from standard input."""
    with _open_client(application, collection, embedding, settings) as client:
        evidence = client.retrieve(
            question, entities=entities or None, filter=filter_, options=options
        )
    if as_json:
        _print_json(evidence)
        return
    for row in evidence:
        _print_evidence(row, full)
    if evidence:
        message(f"{_count(len(evidence), 'chunk')}, mode: {evidence[0].mode}")
    else:
        message("No evidence found.")


@click.command()
@_retrieval
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Rows to show of each stage. --json has them all.",
)
@pass_application
def trace(
    application: Application,
    question: str,
    collection: str,
    entities: tuple[str, ...],
    filter_: str | None,
    options: dict[str, Any],
    embedding: str,
    settings: ModelSettings,
    as_json: bool,
    rows: int,
) -> None:
    """Show what each stage of the retrieval found for QUESTION, and how long it took.

    The stages are those of sag_trace, in their order; the last one is what retrieve prints.
    """
    with _open_client(application, collection, embedding, settings) as client:
        found = client.trace(question, entities=entities or None, filter=filter_, options=options)
    if as_json:
        _print_json(found)
        return
    for stage, of_stage in groupby(found, key=lambda row: row.stage):
        _print_stage(stage, list(of_stage), rows)
    total = sum(row.elapsed_ms or 0 for row in found)
    message(f"{total:.1f} ms in all, mode: {found[0].mode}")


@click.command()
@shared.question_argument
@shared.collection_option
@click.option(
    "--method",
    metavar="NAME",
    help="vector, lexical or hybrid. By default hybrid, and lexical where there is no embedding.",
)
@shared.filter_option
@click.option("--limit", type=int, default=10, show_default=True, metavar="N", help="Chunks.")
@shared.question_embedding_option
@shared.json_option
@shared.question_model_options
@pass_application
def search(
    application: Application,
    question: str,
    collection: str,
    method: str | None,
    filter_: str | None,
    limit: int,
    embedding: str,
    settings: ModelSettings,
    as_json: bool,
) -> None:
    """Search for QUESTION plainly, without entities and hops, to compare with retrieve."""
    with _open_client(application, collection, embedding, settings) as client:
        vector = None
        if method != "lexical":
            by_gateway = embedding == GATEWAY
            vector = client.sag_embed(question) if by_gateway else client.embed(question)
        method = method or ("lexical" if vector is None else "hybrid")
        hits = client.search(question, method=method, filter=filter_, limit=limit, embedding=vector)
    if as_json:
        _print_json(hits)
        return
    for hit in hits:
        _print_chunk(hit, "", [hit.source, f"{hit.score:.3f}"], full=False)
    message(f"{_count(len(hits), 'chunk')}, method: {method}" if hits else "Nothing found.")


def _open_client(
    application: Application, collection: str, embedding: str, settings: ModelSettings
) -> AbstractContextManager[Client]:
    model = shared.load_question_embedding(embedding, settings)
    return open_client(application, collection, model, gateway=embedding == GATEWAY)


def _print_json(rows: Sequence[Evidence | TraceRow | SearchHit]) -> None:
    found = [dataclasses.asdict(row) for row in rows]
    click.echo(json.dumps(found, ensure_ascii=False, indent=2))


def _print_evidence(row: Evidence, full: bool) -> None:
    heading = "".join(f" › {one_line(part)}" for part in row.heading_path)
    facts = [row.source, "event and direct" if row.found_by == "both" else row.found_by]
    if row.hop is not None:
        facts.append(f"hop {row.hop}")
    if row.score is not None:
        facts.append(f"{row.score:.3f}")
    if row.via:
        facts.append(f"via {' > '.join(row.via)}")
    _print_chunk(row, heading, facts, full)


def _print_chunk(row: Evidence | SearchHit, heading: str, facts: Sequence[str], full: bool) -> None:
    """Print rank and title, a line of facts, and the text or its beginning."""
    indent = " " * 4
    columns = terminal_columns() - len(indent)
    title = one_line(row.title) or one_line(row.source)
    click.echo(f"{row.rank:>2}  {click.style(title, bold=True)}{heading}")
    for line in wrap(" · ".join(facts), columns):
        click.secho(indent + line, fg="cyan")
    lines = (
        printable(row.content).splitlines() if full else wrap(row.content, columns, EXCERPT_LINES)
    )
    for line in lines:
        click.echo(indent + line if line else "")
    click.echo()


def _print_stage(stage: str, rows: Sequence[TraceRow], limit: int) -> None:
    """Print a stage: its row of rank 0 as a heading, then a table of the others."""
    for row in rows:
        if row.rank == 0:
            time = f"{row.elapsed_ms or 0:.1f} ms"
            heading = f"{click.style(f'{stage:<15}', bold=True)}{time:>9}"
            click.echo("  ".join(filter(None, (heading, row.name, row.method))))
    found = [row for row in rows if row.rank > 0]
    shown = [
        (
            str(row.rank),
            row.method or "",
            row.name or "",
            f"via {row.entity}" if row.entity and row.event_id else "",
            "" if row.hop is None else f"hop {row.hop}",
            "" if row.score is None else f"{row.score:.3f}",
            row.source or "",
        )
        for row in found[:limit]
    ]
    # The name and what led there share what the other columns leave.
    free = terminal_columns() - 2
    widths = [max(map(columns_of, column)) for column in zip(*shown, strict=True)]
    if widths:
        fixed = sum(width + 2 for width in (*widths[:2], *widths[4:]))
        widths[2] = max(12, min(widths[2], (free - fixed) * 3 // 5))
        widths[3] = min(widths[3], max(12, free - fixed - widths[2] - 2))
    for cells in shown:
        line = "  ".join(
            pad(shorten(cell, width), width)
            for cell, width in zip(cells, widths, strict=True)
            if width
        )
        click.echo("  " + cut(line.rstrip(), free))
    if len(found) > len(shown):
        click.secho(f"  … {len(found) - len(shown)} more", dim=True)
    click.echo()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
