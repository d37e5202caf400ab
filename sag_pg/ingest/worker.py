"""Works off the queue: takes documents, makes events of their chunks, merges them.

Everything that takes time, which is chunking, extraction and embedding, happens outside of any
transaction. A transaction then only copies what is ready, merges it and settles its tasks, so that
a worker that is killed at any moment has merged some documents whole and others not at all.

A model may fail for some chunks of a document. The document is merged all the same, so that its
text is found, but under a hash that its content does not have, so that the next try is taken. What
a language model answers is stored at once, so that nobody pays for it twice.
"""

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import psycopg
from psycopg.types.json import Jsonb

from sag_pg.database import explain_error
from sag_pg.errors import LoadError, ModelError, SagError
from sag_pg.ingest.batch import Batch, Merged, hold_embedding_space
from sag_pg.ingest.chunking import Chunk, chunk
from sag_pg.ingest.events import Event, EventMaker, TitledChunk
from sag_pg.ingest.heartbeat import Heartbeat
from sag_pg.ingest.processing import Processing
from sag_pg.ingest.queue import KEPT_CHARACTERS, REFUSALS, shown
from sag_pg.ingest.report import Failure
from sag_pg.ingest.session import Session
from sag_pg.ingest.stored_extraction import StoredExtractor
from sag_pg.models.base import CostlyExtractor
from sag_pg.models.budget import ModelUsage, Usage
from sag_pg.text import clean

# What goes to the models at once, of one document or of many.
_GROUP_CHUNKS: Final = 64
_GROUP_CHARACTERS: Final = 2**20
_BATCH_CHUNKS: Final = 1000
# What a slow model made, and somebody may have paid for, is not kept waiting for a full batch.
_BATCH_SECONDS: Final = 15.0
# What is taken at once. The other workers are to find something too.
_TAKEN_DOCUMENTS: Final = 64
_TAKEN_CHARACTERS: Final = 4 * 2**20
_POLL_SECONDS: Final = 1.0
# As in sag.take_tasks().
_SUSPECT_LAPSES: Final = 2
_VACUUM_CHUNKS: Final = 500


@dataclass(slots=True)
class Worked:
    """What a worker has done so far; one object that changes.

    Attributes:
        documents: Documents dealt with, whatever became of them.
        chunks: Chunks extracted and embedded.
        failed_chunks: Chunks of other documents for which a model failed.
        tokens: Tokens used so far, of questions to models and of their answers.
    """

    documents: int = 0
    chunks: int = 0
    failed_chunks: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Task:
    """A document on its way in, taken by this worker."""

    task_id: int
    collection_id: int
    collection: str
    job_id: int
    source: str
    title: str
    title_stated: bool
    markdown: bool
    # JSON as the database writes it: Python would round its numbers, if it could read it.
    metadata_text: str
    content_hash: bytes | None
    character_count: int
    lapses: int
    # The text, where it is small enough to be held.
    content: str | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        """What filters ask for, as Python reads it.

        Raises:
            ValueError: It holds a number with too many digits.
            RecursionError: It is nested too deeply.
        """
        return dict(json.loads(self.metadata_text))


@dataclass(slots=True)
class _Part:
    """Consecutive chunks of one document that go to the models together.

    Attributes:
        task: The document.
        chunks: The chunks; none where the document has none or could not be cut.
        is_last: Whether the document ends here.
        error: Why it could not be cut; it ends here then.
    """

    task: Task
    chunks: list[Chunk] = field(default_factory=list)
    is_last: bool = False
    error: SagError | None = None


@dataclass(slots=True)
class _Current:
    """The document whose chunks are on their way into the batch."""

    number: int
    chunk_count: int = 0
    failures: list[tuple[int, str, str | None]] = field(default_factory=list)


class Worker:
    """A process at work on the queue; as a context manager, from registration to retirement.

    Args:
        session: The database.
        processing: How documents are processed. Only tasks of jobs with the same settings are
            taken, and those that SQL clients queued.
        usage: What the models count their requests and tokens with.
        progress: Called whenever something got done, and about once a second while there is nothing
            to take.
        failed: Called for each document that failed, or for some of whose chunks a model did.

    Attributes:
        worker_id: Key of the worker.
        worked: What it has done so far.
    """

    def __init__(
        self,
        session: Session,
        processing: Processing,
        usage: Usage,
        progress: Callable[[Worked], None] = lambda worked: None,
        failed: Callable[[Failure], None] = lambda failure: None,
    ) -> None:
        self.worker_id = 0
        self.worked = Worked()
        self._session = session
        self._processing = processing
        self._usage = usage
        self._recorded: Mapping[str, ModelUsage] = {}
        self._notify = progress
        self._tell = failed
        self._batch = Batch()
        self._merged_at = time.monotonic()
        self._collection = ""
        # Of the collection of what is at hand; None before anything is.
        self._collection_id: int | None = None
        self._events = EventMaker(processing, None)
        self._current: _Current | None = None
        # Tasks taken and neither merged nor given back.
        self._held: dict[int, Task] = {}
        self._merged_chunks = 0
        # Whether the database did not take over all that was merged.
        self._is_late = False
        self._heartbeat: Heartbeat
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        self._session.on_return = self._give_back
        self.worker_id = self._register()
        self._heartbeat = Heartbeat(self._session.reopen, self.worker_id)
        self._exit.enter_context(self._heartbeat)
        self._exit.callback(self._batch.close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # Whatever ended the work, what is held goes back to the others at once. Where the
            # database is gone it takes the tasks back by itself, and nobody waits for it here.
            if not (self._session.connection.broken or self._session.connection.closed):
                self._session.call("SELECT FROM sag.retire_worker(%s)", [self.worker_id])
        finally:
            self._exit.close()

    def work(
        self,
        *,
        collection: str | None = None,
        job_id: int | None = None,
        is_done: Callable[[], bool],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take tasks until there are none and `is_done` says so, or `is_stopped` does.

        Args:
            collection: Of this collection only.
            job_id: Of this job only.
            is_done: Asked when no task is ready.
            is_stopped: Asked between groups of chunks.

        Raises:
            ModelError: What no later document can mend. What was ready is merged.
            DatabaseError: The database was lost and did not come back.
            psycopg.Error: The database refused the work as a whole.
        """
        is_for_all = collection is None and job_id is None
        try:
            while not is_stopped():
                self._heartbeat.work.clear()
                try:
                    is_busy = self._advance(collection, job_id, is_stopped)
                except psycopg.Error:
                    if not (is_for_all and self._is_collection_gone()):
                        raise
                    self._forget()
                    continue
                if is_busy:
                    continue
                # What somebody held while this worker was done with it, and then left to it.
                self._give_back()
                if is_done():
                    break
                # Others may have got something done.
                self._notify(self.worked)
                self._heartbeat.work.wait(_POLL_SECONDS)
            self._merge_ready()
        # What is ready may have been paid for.
        except ModelError:
            self._merge_ready()
            raise
        finally:
            if not self._session.connection.broken:
                self._record_usage()
        self._give_back()

    def maintain(self) -> None:
        """Let the planner and index-only scans know what came, without waiting for autovacuum."""
        if self._merged_chunks < _VACUUM_CHUNKS:
            return
        self._merged_chunks = 0
        if self._session.call("SELECT may FROM sag.is_maintainer() AS may")[0][0]:
            # No function can vacuum. Indexes are left to autovacuum: a pass over a large HNSW
            # index takes hours and is not needed for what was added.
            self._session.call(
                "VACUUM (ANALYZE, INDEX_CLEANUP OFF)"
                " sag.document, sag.chunk, sag.event, sag.entity, sag.event_entity"
            )

    def _advance(
        self, collection: str | None, job_id: int | None, is_stopped: Callable[[], bool]
    ) -> bool:
        """Take some tasks and process them, or merge what is ready; say whether there were any."""
        tasks = self._take(collection, job_id)
        if not tasks:
            self._flush()
            return False
        # One that workers died of is to take no others along.
        is_suspect = tasks[0].lapses >= _SUSPECT_LAPSES
        if is_suspect:
            self._flush()
        self._process(tasks, is_stopped)
        if is_suspect and self._current is None:
            self._flush()
        return True

    def _merge_ready(self) -> None:
        """Merge what is ready at the end, and let go of the rest."""
        self._abandon()
        try:
            self._flush()
        except psycopg.Error:
            if not self._is_collection_gone():
                raise
            self._forget()

    def _register(self) -> int:
        name = f"{socket.gethostname()}:{os.getpid()}"
        rows = self._session.call("SELECT id FROM sag.register_worker(%s) AS id", [name])
        return int(rows[0][0])

    def _register_again(self) -> None:
        """Be another worker after a long sleep: what was held, others have by now."""
        self._flush()
        self.worker_id = self._heartbeat.worker_id = self._register()
        self._heartbeat.forgotten.clear()
        # The answers to come are claimed by the new one.
        self._collection = ""

    def _give_back(self) -> None:
        """Give back what the database thinks that this worker has, and it has not.

        The server's answer to a take may have been lost with the connection.
        """
        self._session.call(
            "SELECT FROM sag.release_tasks(%s, %s::bigint[])", [self.worker_id, list(self._held)]
        )

    def _beat_if_late(self) -> None:
        # The server, or the role, may have no connection to spare for the heartbeat.
        if self._heartbeat.is_late:
            self._heartbeat.beat(self._session.call)

    def _call(self, query: str, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
        self._beat_if_late()
        return self._session.call(query, arguments)

    def _take(self, collection: str | None, job_id: int | None) -> list[Task]:
        if self._heartbeat.forgotten.is_set():
            self._register_again()
        rows = self._call(
            "SELECT task_id, collection_id, collection, job_id, source, title, title_stated,"
            " markdown, metadata::text, content_hash, character_count, lapses"
            " FROM sag.take_tasks(%s, %s, %s, %s, %s, %s)",
            [
                self.worker_id,
                Jsonb(self._processing.settings),
                collection,
                job_id,
                _TAKEN_DOCUMENTS,
                self._taken_characters(),
            ],
        )
        tasks = [Task(*row) for row in rows]
        self._held |= {task.task_id: task for task in tasks}
        return tasks

    def _taken_characters(self) -> int:
        # A worker is busy for long with as much as it asks a slow model at once.
        longest = self._processing.max_characters
        if longest is None or not isinstance(self._processing.extractor, CostlyExtractor):
            return _TAKEN_CHARACTERS
        return min(_GROUP_CHUNKS * longest, _TAKEN_CHARACTERS)

    def _process(self, tasks: list[Task], is_stopped: Callable[[], bool]) -> None:
        collection = tasks[0].collection
        if (collection, tasks[0].collection_id) != (self._collection, self._collection_id):
            self._flush()
            self._collection, self._collection_id = collection, tasks[0].collection_id
            self._events = self._event_maker(collection)
        self._read(tasks)
        changed = self._without_unchanged(tasks)
        for group in self._groups(changed):
            self._process_group(group)
            if is_stopped():
                return

    def _event_maker(self, collection: str) -> EventMaker:
        extractor = self._processing.extractor
        if not isinstance(extractor, CostlyExtractor):
            return EventMaker(self._processing, None)
        stored = StoredExtractor(extractor, collection, self.worker_id, self._call)
        return EventMaker(self._processing, stored)

    def _read(self, tasks: list[Task]) -> None:
        """Get the texts of those that are small enough to be held."""
        small = {t.task_id: t for t in tasks if t.character_count <= KEPT_CHARACTERS}
        if not small:
            return
        rows = self._session.call(
            "SELECT task_id, content FROM sag.task_text(%s::bigint[], %s)"
            " ORDER BY task_id, piece_no",
            [list(small), tasks[0].collection_id],
        )
        pieces: dict[int, list[str]] = {task_id: [] for task_id in small}
        for task_id, content in rows:
            pieces[task_id].append(content)
        for task_id, task in small.items():
            task.content = "".join(pieces[task_id])

    def _pieces(self, task: Task) -> Iterator[str]:
        if task.content is not None:
            yield task.content
            return
        number = 0
        while True:
            rows = self._session.call(
                "SELECT piece FROM sag.task_piece(%s, %s, %s) AS piece",
                [task.collection_id, task.task_id, number],
            )
            if rows[0][0] is None:
                return
            yield rows[0][0]
            number += 1

    def _without_unchanged(self, tasks: list[Task]) -> list[Task]:
        """Hash what SQL clients queued, and settle what is in the collection as it is."""
        without_hash = [task for task in tasks if task.content_hash is None]
        if not without_hash:
            return tasks
        readable = []
        for task in without_hash:
            try:
                digest = self._processing.begin_hash(task)
            except (ValueError, RecursionError):
                # As the loaders refuse them: nobody could read the document's row in Python.
                self._fail(
                    task,
                    LoadError(
                        f"The metadata of {shown(task.source)} are nested too deeply, or hold a"
                        " number with too many digits.",
                        "Give such a number as a string, and objects of a few levels.",
                    ),
                )
                continue
            readable.append(task)
            for piece in self._pieces(task):
                digest.update(piece.encode())
            task.content_hash = digest.digest()
        rows = self._session.call(
            "SELECT source FROM sag.unchanged_sources(%s, %s, %s)",
            [
                self._collection,
                [task.source for task in readable],
                [task.content_hash for task in readable],
            ],
        )
        tasks = [task for task in tasks if task.content_hash is not None]
        sources = {row[0] for row in rows}
        unchanged = [task for task in readable if task.source in sources]
        if not unchanged:
            return tasks
        rows = self._session.call(
            "SELECT task_id FROM sag.settle_unchanged(%s, %s, %s::bigint[], %s)",
            [
                self._collection,
                self.worker_id,
                [task.task_id for task in unchanged],
                [task.content_hash for task in unchanged],
            ],
        )
        settled = {row[0] for row in rows}
        for task in unchanged:
            if task.task_id in settled:
                self._settle(task)
        return [task for task in tasks if task.task_id not in settled]

    def _groups(self, tasks: Iterable[Task]) -> Iterator[list[_Part]]:
        """Chunk the documents, and gather as many chunks as are worth one call of the models."""
        group: list[_Part] = []
        count = characters = 0
        for task in tasks:
            part = _Part(task)
            try:
                for each in chunk(
                    self._pieces(task),
                    markdown=task.markdown,
                    max_characters=self._processing.max_characters,
                ):
                    if count >= _GROUP_CHUNKS or characters >= _GROUP_CHARACTERS:
                        yield [*group, part] if part.chunks else group
                        group, part, count, characters = [], _Part(task), 0, 0
                    part.chunks.append(each)
                    count += 1
                    characters += len(each.content)
            except LoadError as error:
                part.error = error
            part.is_last = True
            group.append(part)
        if group:
            yield group

    def _process_group(self, group: list[_Part]) -> None:
        """Extract and embed the chunks of a group, and put them into the batch."""
        self._beat_if_late()
        try:
            events = iter(
                self._events.make(
                    [
                        TitledChunk(each, part.task.title, part.task.title_stated)
                        for part in group
                        for each in part.chunks
                    ]
                )
            )
        finally:
            self._record_usage(group[0].task)
        is_due = time.monotonic() - self._merged_at >= _BATCH_SECONDS
        ends = [number for number, part in enumerate(group) if part.is_last]
        for number, part in enumerate(group):
            if self._current is None:
                self._current = self._begin(part.task)
            self._add(self._current, [next(events) for _ in part.chunks])
            if part.is_last:
                self._end(part, self._current)
                self._current = None
                if self._batch.chunk_count >= _BATCH_CHUNKS or (is_due and number == ends[-1]):
                    self._flush()
        self._notify(self.worked)

    def _begin(self, task: Task) -> _Current:
        # Of a source that comes twice, the later content replaces the earlier.
        if task.source in self._batch.sources:
            self._flush()
        return _Current(self._batch.open_document())

    def _add(self, current: _Current, events: list[Event]) -> None:
        self._batch.add_rows("chunk", ((current.number, *each.chunk_row()) for each in events))
        self._batch.add_rows(
            "entity", ((current.number, *row) for each in events for row in each.entity_rows())
        )
        for each in events:
            if each.failure is not None:
                current.failures.append(
                    (each.chunk.ordinal, clean(str(each.failure)), each.failure.hint)
                )
        current.chunk_count += len(events)
        self.worked.chunks += len(events)

    def _end(self, part: _Part, current: _Current) -> None:
        task = part.task
        error = part.error
        if error is None and current.chunk_count == 0:
            error = LoadError(f"{task.source} holds no text.", "Leave it out, or fill it.")
        if error is not None:
            self._batch.abandon_document()
            self._fail(task, error)
            return
        assert task.content_hash is not None  # noqa: S101
        content_hash = task.content_hash
        if current.failures:
            # The same chunks failing again is no change; others are.
            content_hash += repr([ordinal for ordinal, _, _ in current.failures]).encode()
            content_hash = hashlib.sha256(content_hash).digest()
        self._batch.close_document(
            task.source,
            task.title,
            Jsonb(task.metadata_text, dumps=str),
            content_hash,
            self._processing.extractor.name,
            current.chunk_count,
            task_id=task.task_id,
            failures=current.failures,
        )
        self.worked.failed_chunks += len(current.failures)
        if current.failures:
            _, error_text, hint = current.failures[0]
            count = f"{len(current.failures)} of {current.chunk_count}"
            failure = f"models failed for {count} chunks; {error_text}"
            self._tell(Failure(shown(task.source), failure, hint))

    def _abandon(self) -> None:
        """Drop the document that is half in the batch, and give back what was not begun."""
        if self._current is not None:
            self._batch.abandon_document()
            self._current = None
        in_batch = set(self._batch.task_ids)
        self._held = {key: task for key, task in self._held.items() if key in in_batch}

    def _is_collection_gone(self) -> bool:
        """Whether the collection at hand was dropped, whatever has its name by now."""
        connection = self._session.connection
        if self._collection_id is None or connection.broken or connection.closed:
            return False
        return not self._session.call(
            "SELECT FROM sag.collection WHERE collection_id = %s", [self._collection_id]
        )

    def _forget(self) -> None:
        """Drop all that is at hand, for its collection is gone, and give back what is of others."""
        self._batch.clear()
        self._current = None
        self._held.clear()
        self._collection, self._collection_id = "", None
        self._recorded = self._usage.by_model
        self._give_back()

    def _flush(self) -> None:
        """Merge the batch; where the database refuses it, each of its documents alone."""
        self._merged_at = time.monotonic()
        if len(self._batch) == 0:
            return
        try:
            self._merge(None)
        except REFUSALS:
            for number, task_id in enumerate(self._batch.task_ids):
                try:
                    self._merge(number)
                except REFUSALS as error:
                    self._fail(self._held[task_id], LoadError(*explain_error(error)))
        for task_id in self._batch.task_ids:
            self._settle(self._held.get(task_id))
        self._batch.clear()
        if self._is_late:
            # Newer content came first, or somebody had the task in hand just then: the queue
            # knows what is to become of it.
            self._is_late = False
            self._give_back()
        self._notify(self.worked)

    def _merge(self, only: int | None) -> None:
        model = self._processing.embedding_model

        def merge(connection: psycopg.Connection[Any]) -> list[Merged]:
            if model is not None:
                # The database may have changed its model since this worker began.
                hold_embedding_space(connection, self._collection, model.name, model.dimensions)
            return self._batch.merge(connection, self._collection, self.worker_id, only)

        merged = self._session.transact(merge)
        self._merged_chunks += sum(each.chunk_count for each in merged)
        self._is_late = self._is_late or any(each.state == "superseded" for each in merged)

    def _fail(self, task: Task, error: SagError) -> None:
        self._session.call(
            "SELECT FROM sag.fail_task(%s, %s, %s, %s)",
            [self.worker_id, task.task_id, clean(str(error)), error.hint],
        )
        self._tell(Failure(shown(task.source), str(error), error.hint))
        self._settle(task)

    def _settle(self, task: Task | None) -> None:
        if task is None or self._held.pop(task.task_id, None) is None:
            return
        self.worked.documents += 1
        self._notify(self.worked)

    def _record_usage(self, task: Task | None = None) -> None:
        """Write down what the models were asked since the last time."""
        self.worked.tokens = self._usage.tokens
        task = task or next(iter(self._held.values()), None)
        by_model = self._usage.by_model
        if task is None or by_model == self._recorded:
            return
        new = {
            model: usage - self._recorded.get(model, ModelUsage())
            for model, usage in by_model.items()
        }
        self._session.call(
            "SELECT FROM sag.add_usage(%s, %s, %s, %s::bigint[], %s::bigint[], %s::bigint[],"
            " %s::bigint[])",
            [
                task.collection,
                task.job_id,
                list(new),
                [usage.requests for usage in new.values()],
                [usage.prompt_tokens for usage in new.values()],
                [usage.completion_tokens for usage in new.values()],
                [usage.estimated_tokens for usage in new.values()],
            ],
        )
        self._recorded = by_model
