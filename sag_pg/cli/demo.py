"""The command demo: a first look at what retrieval does, on a corpus that the package ships."""

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file
from statistics import median
from typing import Final

import click

from sag_pg.cli.application import Application, message, pass_application
from sag_pg.cli.layout import columns_of, cut, pad, shorten, terminal_columns, wrap
from sag_pg.cli.options import embedding_option, load_embedding
from sag_pg.cli.session import open_client
from sag_pg.client import Client, Evidence
from sag_pg.demo import CORPUS, QUESTIONS
from sag_pg.models.base import EmbeddingModel

COLLECTION: Final = "demo"

# Has its evidence without embeddings too, which is how plain psql asks.
_PLAIN_QUESTION: Final = "Which medal was awarded to the architect of the Lamplight Observatory?"
_ARROW: Final = " → "
_INDENT: Final = " " * 3


@dataclass(frozen=True, slots=True)
class Question:
    """A line of questions.jsonl, or a question of the user's own, which is only a question.

    Attributes:
        question: The question in words.
        answer: The answer that the evidence holds.
        supporting: Sources of the documents that answer it, in the order in which one leads to
            the next.
        id: Its number in the file.
        hops: How many documents it takes.
    """

    question: str
    answer: str = ""
    supporting: Sequence[str] = ()
    id: str = ""
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a question: its evidence, and the time it took in milliseconds."""

    question: Question
    evidence: list[Evidence]
    milliseconds: float

    def has_all(self, limit: int) -> bool:
        """Whether all supporting documents are among the first so many."""
        return {row.source for row in self.evidence[:limit]} >= set(self.question.supporting)


@click.command()
@click.option(
    "--question",
    "own_questions",
    multiple=True,
    metavar="TEXT",
    help="Ask this of the demo's documents instead. Repeatable.",
)
@embedding_option
@pass_application
def demo(application: Application, own_questions: tuple[str, ...], embedding: str) -> None:
    """Ingest a small corpus and ask what takes several documents to answer.

    The corpus is some forty short documents on an invented place, in English and Chinese. It
    goes into the collection "demo", which a second run finds there. For each question the
    evidence is printed as it was found, with the documents that a complete answer needs marked
    ✓, and the chain of names that leads from one to the next.
    """
    questions = (
        [Question(text) for text in own_questions]
        if own_questions
        else [Question(**json.loads(line)) for line in QUESTIONS.read_text("utf-8").splitlines()]
    )
    model = load_embedding(embedding)
    with open_client(application, COLLECTION, model) as client:
        _ingest_corpus(client, model)
        # The model is loaded at its first text, which is no part of a retrieval.
        client.embed(questions[0].question)
        outcomes = [_ask(client, question) for question in questions]
    for outcome in outcomes:
        _print_outcome(outcome)
    if not own_questions:
        _print_summary(outcomes)
        _print_next_steps(application)


def _ingest_corpus(client: Client, model: EmbeddingModel | None) -> None:
    # Here, because commands that fail on their arguments should not wait for it.
    from sag_pg.ingest.job import ingest
    from sag_pg.ingest.loaders import load_paths
    from sag_pg.models.local_extraction import load_extractor

    client.create_collection(COLLECTION)
    with as_file(CORPUS) as path:
        report = ingest(
            client.connection,
            load_paths([str(path)]),
            collection=COLLECTION,
            extractor=load_extractor(),
            embedding_model=model,
        )
    for failure in report.failures:
        message(f"Failed: {failure}")
    if new := report.added + report.replaced:
        message(f"Ingested {new} documents into collection {COLLECTION!r}: {report.seconds:.1f} s.")
    else:
        message(f"Collection {COLLECTION!r} holds the {report.unchanged} documents already.")


def _ask(client: Client, question: Question) -> Outcome:
    started = time.perf_counter()
    evidence = client.retrieve(question.question)
    return Outcome(question, evidence, (time.perf_counter() - started) * 1000)


def chain(question: str, evidence: Sequence[Evidence]) -> list[str]:
    """Join what the evidence was found over to a chain.

    Args:
        question: The question in words.
        evidence: Found documents in the order in which one leads to the next.

    Returns:
        The names in `via` which the step before has too: of the first document those that stand
        in the question, of each other one those that stand in the document before it and not in
        the question. Then the last document's title, where it was joined and its title does not
        hold the last name.
    """
    names: list[str] = []
    asked = before = question.casefold()
    is_joined = False
    for number, row in enumerate(evidence):
        steps = [
            name
            for name in row.via
            if name.casefold() in before and (number == 0 or name.casefold() not in asked)
        ]
        names += [name for name in steps if name not in names]
        is_joined = bool(steps) or row.title.casefold() in before
        before = f"{row.title}\n{row.content}".casefold()
    if is_joined and names and names[-1].casefold() not in evidence[-1].title.casefold():
        names.append(evidence[-1].title)
    return names


def _print_outcome(outcome: Outcome) -> None:
    question = outcome.question
    columns = terminal_columns() - len(_INDENT)
    for line in wrap(f"{question.id} {question.question}".strip(), columns + len(_INDENT)):
        click.secho(line, bold=True)
    place = {row.source: row for row in outcome.evidence}
    supporting = [place[source] for source in question.supporting if source in place]
    if question.answer:
        click.echo(f"{_INDENT}expected  {click.style(question.answer, fg='green')}")
    names = chain(question.question, supporting)
    if len(names) > 1:
        click.echo(f"{_INDENT}chain     {shorten(_ARROW.join(names), columns - 10)}")
    # What follows the last document of a complete answer says nothing more.
    shown = outcome.evidence
    if question.supporting and outcome.has_all(len(shown)):
        shown = shown[: max(row.rank for row in supporting)]
    _print_rows(shown, question.supporting, columns)
    click.echo(f"{_INDENT}{_verdict(outcome)}")
    click.echo()


def _print_rows(rows: Sequence[Evidence], supporting: Sequence[str], columns: int) -> None:
    titles = [shorten(row.title, columns // 2) for row in rows]
    width = max(map(columns_of, titles), default=0)
    for row, title in zip(rows, titles, strict=True):
        is_supporting = row.source in supporting
        way = f"via {' > '.join(row.via)}" if row.via else row.found_by
        if row.hop:
            way = f"hop {row.hop} {way}"
        line = f"{'✓' if is_supporting else ' '} {row.rank:>2}  {pad(title, width)}  {way}"
        click.secho(_INDENT + cut(line, columns), dim=bool(supporting) and not is_supporting)


def _verdict(outcome: Outcome) -> str:
    """Say how complete the evidence is, how it was searched, and how long that took."""
    question = outcome.question
    facts = [f"{outcome.milliseconds:.0f} ms"]
    if outcome.evidence:
        facts.insert(0, f"mode {outcome.evidence[0].mode}")
    if not question.supporting:
        return " · ".join(facts)
    for limit in (5, 10):
        if outcome.has_all(limit):
            verdict = f"complete in the top {limit}"
            return " · ".join([click.style(verdict, fg="green"), *facts])
    found = {row.source for row in outcome.evidence}
    missing = ", ".join(source for source in question.supporting if source not in found)
    return " · ".join([click.style(f"incomplete, without {missing}", fg="yellow"), *facts])


def _print_summary(outcomes: Sequence[Outcome]) -> None:
    complete = sum(outcome.has_all(10) for outcome in outcomes)
    in_5 = sum(outcome.has_all(5) for outcome in outcomes)
    milliseconds = median(outcome.milliseconds for outcome in outcomes)
    click.secho(
        f"{complete} of {len(outcomes)} questions have their whole evidence in the top 10"
        f" ({in_5} in the top 5), at {milliseconds:.0f} ms per retrieval.",
        bold=True,
    )


def _print_next_steps(application: Application) -> None:
    program = "sag-pg"
    if application.data_dir is not None:
        program += f" --data-dir {shlex.quote(str(application.data_dir))}"
    elif application.database_url is not None:
        # Not repeated: there may be a password in it.
        program += " --database-url URL"
    click.echo("\nTry next:")
    for command in (
        'demo --question "Who taught the founder of Brackwell Instruments?"',
        f'retrieve -c {COLLECTION} "{_PLAIN_QUESTION}"',
        f'trace -c {COLLECTION} "{_PLAIN_QUESTION}"',
        'psql -c "SELECT rank, title, via, mode FROM'  # noqa: S608 - only shown
        f" sag_retrieve('{_PLAIN_QUESTION}', '{COLLECTION}')\"",
        "ingest PATH",
    ):
        click.echo(f"  {program} {command}")
