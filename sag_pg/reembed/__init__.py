"""Changes the embedding model of a database that goes on answering.

The vectors of the next model are made beside those in use, row by row, with indexes of their own,
and then take their place in one short transaction. Until then retrieval and ingest work with the
present model; rows that come meanwhile are listed by the merges and embedded too.

No transaction is held while the model works, but for the last rows: under an ingest that never
rests the list would never be empty, so that merges wait while these are embedded. Retrieval never
waits for more than a moment.

A run that ends early, however it does, loses what was not stored yet and no more: the same call
goes on from there. One process at a time works on it, which a lock of its session tells the others.
"""

import time
from collections.abc import Callable
from typing import Any

import psycopg

from sag_pg.errors import BudgetExhaustedError, EndpointDownError
from sag_pg.ingest.session import Session
from sag_pg.models.base import EmbeddingModel
from sag_pg.models.budget import Usage
from sag_pg.reembed.claim import claimed
from sag_pg.reembed.patience import when_unlocked
from sag_pg.reembed.report import Failure, Progress, Report
from sag_pg.reembed.run import Run

__all__ = ["Failure", "Progress", "Report", "cancel", "reembed"]

Connection = psycopg.Connection[Any]


def reembed(
    connection: Connection,
    model: EmbeddingModel,
    *,
    usage: Usage | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
    notify: Callable[[str], None] = lambda message: None,
) -> Report:
    """Change a database over to another embedding model.

    With the model in use, rows that have no vector get one, such as those for which a model failed
    and those that were ingested without. A database without vectors gets its first ones.

    Args:
        connection: A connection in autocommit mode with the vector types registered, as the owner
            of sag's tables.
        model: The next model.
        usage: What the model counts its requests and tokens with; None where it counts none.
        progress: Called whenever something got done.
        notify: Told what takes long besides.

    Returns:
        What was done.

    Raises:
        DatabaseError: Another process is at it, or the connection was lost.
        EndpointRefusedError: The endpoint does not take the key, does not know the model or wants
            money.
        psycopg.Error: The database refused the change, such as one to a third model while one to
            another is under way.
    """
    started = time.perf_counter()
    run = Run(connection, model, usage or Usage(), progress, notify)
    with claimed(run.session, notify):
        try:
            run.run()
        except (BudgetExhaustedError, EndpointDownError) as error:
            run.report.stopped = " ".join(filter(None, (str(error), error.hint)))
    run.report.usage = run.usage.total
    run.report.seconds = time.perf_counter() - started
    return run.report


def cancel(connection: Connection, notify: Callable[[str], None] = lambda message: None) -> bool:
    """Give up the change that is under way; the model in use stays.

    Args:
        connection: As for `reembed`.
        notify: As for `reembed`.

    Returns:
        False where there was none.

    Raises:
        DatabaseError: Another process is at it.
    """
    session = Session(connection)
    with claimed(session, notify):
        rows = when_unlocked(
            lambda patience: session.call(
                "SELECT done FROM sag.cancel_reembedding(%s) AS done", [patience]
            ),
            notify,
        )
    return bool(rows[0][0])
