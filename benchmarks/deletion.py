"""That deleting takes as long as what is deleted is large, not as the collection is.

    python benchmarks/deletion.py [--small 1000] [--large 100000] [--rounds 5]

Deletes 100 documents of a small and of a large collection by turns, and puts them back: as in the
minute after a bulk load, when ANALYZE has not seen the tables yet, and after it; under each setting
of plan_cache_mode.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import click
import psycopg
from server import connect, fill, make_batch, prepare, temporary_server
from synthetic import Corpus, read_sentences

_DELETED = 100
_MODES = ("auto", "force_custom_plan", "force_generic_plan")


def _round(connection: psycopg.Connection[Any], corpus: Corpus, first: int) -> float:
    sources = [f"document {number}" for number in range(first, first + _DELETED)]
    started = time.perf_counter()
    connection.execute("SELECT FROM sag.delete_documents('default', %s)", [sources])
    taken = time.perf_counter() - started
    with connection.transaction():
        make_batch(corpus, first, _DELETED).merge(connection, "default")
    return taken


@click.command()
@click.option("--small", default=1000, show_default=True, help="Documents of the one.")
@click.option("--large", default=100_000, show_default=True, help="Documents of the other.")
@click.option("--rounds", default=5, show_default=True, help="Deletions of each kind.")
@click.option("--corpus", "corpora", multiple=True, type=click.Path(path_type=Path), help="Texts.")
def main(small: int, large: int, rounds: int, corpora: tuple[Path, ...]) -> None:
    """Measure, and print the median times in milliseconds and their ratio."""
    corpus = Corpus(read_sentences(list(corpora)))
    sizes = (small, large)
    with temporary_server(autovacuum="off") as uri:
        for size in sizes:
            with prepare(uri, f"of_{size}") as connection:
                fill(connection, corpus, size)
        for is_analyzed in (False, True):
            for mode in _MODES:
                sessions = [connect(uri, f"of_{size}") for size in sizes]
                for session in sessions:
                    session.execute(f"SET plan_cache_mode = {mode}".encode())
                    if is_analyzed:
                        session.execute("ANALYZE")
                times: list[list[float]] = [[], []]
                # The first round reads the catalogs and plans, in both.
                for number in range(rounds + 1):
                    for session, taken in zip(sessions, times, strict=True):
                        taken.append(_round(session, corpus, number * _DELETED % small))
                of_small, of_large = (statistics.median(taken[1:]) for taken in times)
                click.echo(
                    f"{'after' if is_analyzed else 'before'} ANALYZE, {mode}:"
                    f" {_DELETED} of {small} in {of_small * 1000:.0f} ms,"
                    f" {_DELETED} of {large} in {of_large * 1000:.0f} ms,"
                    f" ratio {of_large / of_small:.2f}"
                )


if __name__ == "__main__":
    main()
