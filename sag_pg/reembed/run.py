"""The steps of a change of the embedding model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psycopg
from pgvector import HalfVector

from sag_pg.errors import (
    BudgetExhaustedError,
    EndpointDownError,
    EndpointRefusedError,
    ModelError,
)
from sag_pg.ingest.events import embed_accepted, event_text
from sag_pg.ingest.session import Session
from sag_pg.models.base import EmbeddingModel, Extraction, Passage
from sag_pg.models.budget import Usage
from sag_pg.reembed.patience import LOCKED, Patience, when_unlocked
from sag_pg.reembed.report import Failure, Progress, Report

Connection = psycopg.Connection[Any]
# Runs a query and returns its rows.
_Call = Callable[..., list[tuple[Any, ...]]]

# What one transaction stores, and about what goes to the model at once.
_BATCH_ROWS: Final = 256
_BATCH_BYTES: Final = 2**20
# A text at fault makes the batch fail, then its half, and so on: nine times in a row until it is
# alone. A model that fails more often than that is down.
_MOST_FAILURES_IN_ROW: Final = 12
# So many rows are embedded while merges wait.
_LAST_ROWS: Final = 2000
_VACUUM_ROWS: Final = 500
_MOST_FAILURES_KEPT: Final = 1000
# After these no further text would fare better.
_ENDS: Final = (BudgetExhaustedError, EndpointDownError, EndpointRefusedError)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of `sag.reembed_batch()`."""

    collection_id: int
    kind: str
    row_id: int
    source: str | None
    title: str | None
    heading_path: list[str] | None
    content: str | None
    event_title: str | None
    statement: str | None

    @property
    def text(self) -> str | None:
        """What the ingest would embed; None where there is nothing to embed."""
        if self.content is None:
            return None
        passage = Passage(self.title or "", self.content, tuple(self.heading_path or ()))
        event = Extraction(event_title=self.event_title, event_text=self.statement)
        return event_text(passage, event)


class Run:
    """One run, over a session that has claimed the work. Arguments as for `sag_pg.reembed.reembed`.

    Attributes:
        report: What was done so far.
    """

    def __init__(
        self,
        connection: Connection,
        model: EmbeddingModel,
        usage: Usage,
        progress: Callable[[Progress], None],
        notify: Callable[[str], None],
    ) -> None:
        self.session = Session(connection)
        self.model = model
        self.usage = usage
        self.report = Report(model.name, model.dimensions)
        self.progress = Progress()
        self.show = progress
        self.notify = notify
        self.failures_in_row = 0
        # Number of rows embedded at the last vacuum.
        self.vacuumed_at = 0

    def run(self) -> None:
        """Go all the way, from wherever the last run left it.

        Raises:
            ModelError: The model can no more. What it made is stored.
        """
        when_unlocked(
            lambda patience: self.session.call(
                "SELECT FROM sag.start_reembedding(%s, %s, %s)",
                [self.model.name, self.model.dimensions, patience],
            ),
            self.notify,
        )
        self.session.transact(lambda c: c.execute("SELECT FROM sag.list_reembed_tasks()"))
        self.progress.total = remaining = _remaining(self.session.call)
        self.show(self.progress)
        patience = Patience(self.notify)
        while not self.report.finished:
            # What comes meanwhile is the next round's, for merges might bring more all the time.
            while remaining > 0:
                self._embed_listed(self.session.call, self.session.transact, remaining)
                remaining = _remaining(self.session.call)
                if remaining <= _LAST_ROWS:
                    break
            self._build_indexes()
            try:
                outcome = self.session.transact(partial(self._switch, patience.milliseconds))
            except LOCKED as error:
                outcome = error
            if isinstance(outcome, LOCKED):
                patience.wait(outcome)
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                self.report.finished = outcome
            remaining = _remaining(self.session.call)

    def _embed_listed(
        self,
        call: _Call,
        transact: Callable[[Callable[[Connection], int]], int],
        most: float = math.inf,
    ) -> None:
        """Embed so many rows of the list, or all."""
        while most > 0 and (
            rows := [
                _Row(*row)
                for row in call(
                    "SELECT * FROM sag.reembed_batch(%s, %s)", [_BATCH_ROWS, _BATCH_BYTES]
                )
            ]
        ):
            most -= len(rows)
            outcomes = self._embed(rows)
            vectors = [each if isinstance(each, HalfVector) else None for each in outcomes]
            arguments = [
                rows[0].collection_id,
                rows[0].kind,
                [row.row_id for row in rows],
                vectors,
            ]
            stored = transact(partial(_store, arguments))
            self._count(rows, outcomes, stored)

    def _count(
        self, rows: list[_Row], outcomes: list[HalfVector | ModelError | None], stored: int
    ) -> None:
        failed = 0
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, ModelError):
                failed += 1
                if len(self.report.failures) < _MOST_FAILURES_KEPT:
                    name = row.source or row.content or ""
                    self.report.failures.append(
                        Failure(row.kind, row.row_id, name, str(outcome), outcome.hint)
                    )
        self.report.embedded += stored
        self.report.failed += failed
        self.report.without += len(rows) - stored - failed
        self.progress.rows += len(rows)
        self.progress.total = max(self.progress.total, self.progress.rows)
        self.progress.failed += failed
        self.progress.tokens = self.usage.tokens
        self.show(self.progress)

    def _embed(self, rows: list[_Row]) -> list[HalfVector | ModelError | None]:
        outcomes: list[HalfVector | ModelError | None] = [None] * len(rows)
        known = {
            no: text
            for no, row in enumerate(rows)
            if (text := row.text) is not None and self.model.knows(text)
        }
        if known:
            for no, outcome in zip(known, self._embed_texts([*known.values()]), strict=True):
                outcomes[no] = outcome
        return outcomes

    def _embed_texts(self, texts: list[str]) -> list[HalfVector | ModelError]:
        """Embed texts; those for which the model fails even alone get its error."""
        try:
            outcomes = [*embed_accepted(self.model, texts)]
        except _ENDS:
            raise
        except ModelError as error:
            self.failures_in_row += 1
            if self.failures_in_row == _MOST_FAILURES_IN_ROW:
                raise EndpointDownError(
                    f"The embedding model {self.model.name} failed {_MOST_FAILURES_IN_ROW} times in"
                    f" a row, the last time because: {error}",
                    error.hint,
                ) from error
            if len(texts) == 1:
                return [error]
        else:
            self.failures_in_row = 0
            return list(outcomes)
        middle = len(texts) // 2
        return [*self._embed_texts(texts[:middle]), *self._embed_texts(texts[middle:])]

    def _build_indexes(self) -> None:
        """Bring the next vectors to their indexes."""
        while missing := self.session.call(
            "SELECT holder, statement FROM sag.reembedding_indexes() LIMIT 1"
        ):
            holder, statement = missing[0]
            self.notify(f"Indexing the next vectors of sag.{holder}")
            self.session.call(statement)
        if self.report.embedded - self.vacuumed_at >= _VACUUM_ROWS:
            # No function can vacuum. Without it the first questions after the switch would be
            # planned blindly.
            self.session.call(
                "VACUUM (ANALYZE, INDEX_CLEANUP OFF) sag.event, sag.chunk, sag.entity"
            )
            self.vacuumed_at = self.report.embedded

    def _switch(self, patience_ms: int, connection: Connection) -> bool | Exception:
        """Embed the last rows while merges wait, and have the next vectors take over.

        Returns:
            False where there is too much to embed, or an index to build; why, where the tables are
            in use or the model can no more. It is no failure, for then nothing would be kept.
        """

        def call(query: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
            return connection.execute(query.encode(), arguments).fetchall()

        connection.execute("SELECT FROM sag.lock_collections()")
        if _remaining(call) > _LAST_ROWS:
            return False
        try:
            self._embed_listed(call, lambda action: action(connection))
            with connection.transaction():
                rows = call("SELECT done FROM sag.finish_reembedding(%s) AS done", [patience_ms])
        except (*LOCKED, *_ENDS) as error:
            return error
        return bool(rows[0][0])


def _remaining(call: _Call) -> int:
    """How many rows the list holds."""
    facts = call("SELECT facts FROM sag.reembedding_status() AS facts")[0][0]
    return int(facts["remaining"]) if facts is not None else 0


def _store(arguments: Sequence[Any], connection: Connection) -> int:
    row = connection.execute(
        "SELECT stored FROM sag.store_reembedded(%s, %s, %s, %b) AS stored", arguments
    ).fetchone()
    assert row is not None  # noqa: S101
    return int(row[0])
