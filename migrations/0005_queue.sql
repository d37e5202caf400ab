-- The ingest as a queue that several workers share, answers of models that are kept for good, and
-- room for the vectors of the next model.

SELECT set_config('search_path', sag.search_path(), TRUE);

CREATE TABLE sag.ingest_worker (
    worker_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    backend_pid integer
);
COMMENT ON TABLE sag.ingest_worker IS
'Processes at work on the queue. One whose heartbeat stops loses its tasks to the others.';
COMMENT ON COLUMN sag.ingest_worker.worker_id IS 'Key.';
COMMENT ON COLUMN sag.ingest_worker.name IS 'Host and process.';
COMMENT ON COLUMN sag.ingest_worker.started_at IS 'When it began.';
COMMENT ON COLUMN sag.ingest_worker.heartbeat_at IS 'When it was last heard of.';
COMMENT ON COLUMN sag.ingest_worker.backend_pid IS
'The session that was heard of: when it is gone, so is the worker, and nobody waits for long.';

ALTER TABLE sag.ingest_job
ADD COLUMN origin text NOT NULL DEFAULT 'command' CHECK (origin IN ('command', 'sql')),
ADD COLUMN settings jsonb CHECK (jsonb_typeof(settings) = 'object'),
ADD COLUMN loader_id bigint,
ADD COLUMN sealed_at timestamptz,
ADD COLUMN stopped text,
ADD COLUMN cancelled_at timestamptz,
ADD COLUMN unchanged_count bigint NOT NULL DEFAULT 0;
UPDATE sag.ingest_job SET sealed_at = coalesce(finished_at, started_at);
-- Whether a job is done is what its tasks say; the view sag.job_status puts it together.
ALTER TABLE sag.ingest_job DROP COLUMN state, DROP COLUMN finished_at;
-- What SQL clients queue has one job a collection, which never ends.
CREATE UNIQUE INDEX ingest_job_sql ON sag.ingest_job (collection_id) WHERE origin = 'sql';
COMMENT ON TABLE sag.ingest_job IS
'Documents that were queued together. How far they are: the view sag.job_status.';
COMMENT ON COLUMN sag.ingest_job.origin IS
'command, or sql for the one job of a collection that takes what sag_ingest() queues.';
COMMENT ON COLUMN sag.ingest_job.settings IS
'How its documents are processed; only workers with the same settings take them. NULL: any worker.';
COMMENT ON COLUMN sag.ingest_job.loader_id IS 'The worker that queues its documents.';
COMMENT ON COLUMN sag.ingest_job.started_at IS 'When it was made.';
COMMENT ON COLUMN sag.ingest_job.sealed_at IS 'When its last document was queued.';
COMMENT ON COLUMN sag.ingest_job.stopped IS
'Why its tasks wait and are not taken: a budget, a model that is down, an interruption.';
COMMENT ON COLUMN sag.ingest_job.cancelled_at IS 'When it was cancelled.';
COMMENT ON COLUMN sag.ingest_job.unchanged_count IS
'Documents that were there already, and so never became tasks.';
COMMENT ON INDEX sag.ingest_job_sql IS 'Keeps a collection to one job of SQL clients.';

ALTER TABLE sag.ingest_task
DROP CONSTRAINT ingest_task_pkey,
DROP CONSTRAINT ingest_task_state_check,
ALTER COLUMN finished_at DROP NOT NULL,
ALTER COLUMN finished_at DROP DEFAULT,
ALTER COLUMN state SET DEFAULT 'queued',
ADD COLUMN title text NOT NULL DEFAULT '',
ADD COLUMN title_stated boolean NOT NULL DEFAULT TRUE,
ADD COLUMN markdown boolean NOT NULL DEFAULT FALSE,
ADD COLUMN metadata jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
ADD COLUMN content_hash bytea,
ADD COLUMN character_count bigint NOT NULL DEFAULT 0,
ADD COLUMN worker_id bigint,
ADD COLUMN max_attempts integer NOT NULL DEFAULT 1 CHECK (max_attempts > 0),
ADD COLUMN attempts integer NOT NULL DEFAULT 0,
ADD COLUMN lapses integer NOT NULL DEFAULT 0,
ADD COLUMN hint text,
ADD COLUMN available_at timestamptz NOT NULL DEFAULT now(),
ADD COLUMN created_at timestamptz NOT NULL DEFAULT now(),
ADD PRIMARY KEY (collection_id, task_id),
ADD CONSTRAINT ingest_task_state_check CHECK (state IN (
    'queued', 'running', 'added', 'replaced', 'unchanged', 'incomplete', 'failed', 'superseded',
    'cancelled'
)),
ADD CONSTRAINT ingest_task_worker_check CHECK ((state = 'running') = (worker_id IS NOT NULL));
CREATE INDEX ingest_task_job ON sag.ingest_task (job_id, state, collection_id);
CREATE INDEX ingest_task_queued ON sag.ingest_task (job_id, task_id, collection_id)
WHERE state = 'queued';
CREATE INDEX ingest_task_running ON sag.ingest_task (worker_id, collection_id)
WHERE state = 'running';
CREATE INDEX ingest_task_live ON sag.ingest_task (source, collection_id)
WHERE state IN ('queued', 'running', 'failed', 'incomplete');
COMMENT ON TABLE sag.ingest_task IS
'A document on its way into the collection, and what became of it. The view sag.task_status shows '
'it with its worker and its failed chunks.';
COMMENT ON COLUMN sag.ingest_task.job_id IS 'The job it belongs to.';
COMMENT ON COLUMN sag.ingest_task.task_id IS
'Key; of two tasks of one source the higher has the newer content.';
COMMENT ON COLUMN sag.ingest_task.state IS
'queued, running; added, replaced or unchanged when all is well; incomplete where a model failed '
'for some chunks; failed; superseded by newer content or a deletion; cancelled.';
COMMENT ON COLUMN sag.ingest_task.error IS 'Why it failed, or what failed the last time.';
COMMENT ON COLUMN sag.ingest_task.hint IS 'What would be right.';
COMMENT ON COLUMN sag.ingest_task.finished_at IS 'When it was dealt with; NULL before.';
COMMENT ON COLUMN sag.ingest_task.title IS 'The document''s title.';
COMMENT ON COLUMN sag.ingest_task.title_stated IS
'Whether somebody gave the title; FALSE where it is just the name of the file.';
COMMENT ON COLUMN sag.ingest_task.markdown IS 'Whether headings in the text count.';
COMMENT ON COLUMN sag.ingest_task.metadata IS 'The document''s metadata.';
COMMENT ON COLUMN sag.ingest_task.content_hash IS
'As in sag.document; NULL where the worker has to find it.';
COMMENT ON COLUMN sag.ingest_task.character_count IS 'Length of the text.';
COMMENT ON COLUMN sag.ingest_task.worker_id IS 'The worker that has it, while it is running.';
COMMENT ON COLUMN sag.ingest_task.max_attempts IS 'How many failures there may be.';
COMMENT ON COLUMN sag.ingest_task.attempts IS 'How often a model, or the document itself, failed.';
COMMENT ON COLUMN sag.ingest_task.lapses IS
'How often its worker died; after some it is taken alone, after more it fails.';
COMMENT ON COLUMN sag.ingest_task.available_at IS 'When it may be tried again.';
COMMENT ON COLUMN sag.ingest_task.created_at IS 'When it was queued.';
COMMENT ON INDEX sag.ingest_task_job IS 'Serves the counts of sag.job_status.';
COMMENT ON INDEX sag.ingest_task_queued IS 'Serves the workers'' search for tasks.';
COMMENT ON INDEX sag.ingest_task_running IS 'Serves the return of tasks whose worker died.';
COMMENT ON INDEX sag.ingest_task_live IS 'Finds tasks that newer content or a deletion supersedes.';

CREATE TABLE sag.ingest_piece (
    collection_id bigint NOT NULL,
    task_id bigint NOT NULL,
    piece_no integer NOT NULL CHECK (piece_no >= 0),
    content text NOT NULL,
    PRIMARY KEY (collection_id, task_id, piece_no),
    FOREIGN KEY (collection_id, task_id) REFERENCES sag.ingest_task
);
COMMENT ON TABLE sag.ingest_piece IS
'Texts of queued documents, in pieces of bounded size. They go when the document is in; those of '
'a task that failed stay for sag-pg jobs retry.';
COMMENT ON COLUMN sag.ingest_piece.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.ingest_piece.task_id IS 'The document''s task.';
COMMENT ON COLUMN sag.ingest_piece.piece_no IS 'Place in the text, from 0.';
COMMENT ON COLUMN sag.ingest_piece.content IS 'The piece; joined in order they are the text.';

CREATE TABLE sag.chunk_failure (
    collection_id bigint NOT NULL,
    task_id bigint NOT NULL,
    ordinal integer NOT NULL CHECK (ordinal >= 0),
    attempts integer NOT NULL DEFAULT 1,
    error text NOT NULL,
    hint text,
    failed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (collection_id, task_id, ordinal),
    FOREIGN KEY (collection_id, task_id) REFERENCES sag.ingest_task
);
COMMENT ON TABLE sag.chunk_failure IS
'Chunks for which a model failed, as long as it has not answered.';
COMMENT ON COLUMN sag.chunk_failure.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.chunk_failure.task_id IS 'The document''s task.';
COMMENT ON COLUMN sag.chunk_failure.ordinal IS 'Place of the chunk in the document, from 0.';
COMMENT ON COLUMN sag.chunk_failure.attempts IS 'How many attempts of the task it has failed in.';
COMMENT ON COLUMN sag.chunk_failure.error IS 'How the model failed the last time.';
COMMENT ON COLUMN sag.chunk_failure.hint IS 'What would be right.';
COMMENT ON COLUMN sag.chunk_failure.failed_at IS 'When it failed the last time.';

CREATE TABLE sag.ingest_usage (
    collection_id bigint NOT NULL,
    job_id bigint NOT NULL,
    model text NOT NULL,
    requests bigint NOT NULL DEFAULT 0,
    prompt_tokens bigint NOT NULL DEFAULT 0,
    completion_tokens bigint NOT NULL DEFAULT 0,
    estimated_tokens bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (collection_id, job_id, model),
    FOREIGN KEY (collection_id, job_id) REFERENCES sag.ingest_job
);
COMMENT ON TABLE sag.ingest_usage IS 'What a job asked of each model.';
COMMENT ON COLUMN sag.ingest_usage.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.ingest_usage.job_id IS 'The job.';
COMMENT ON COLUMN sag.ingest_usage.model IS 'The model''s name.';
COMMENT ON COLUMN sag.ingest_usage.requests IS 'Requests sent, each try counted.';
COMMENT ON COLUMN sag.ingest_usage.prompt_tokens IS 'Tokens of the questions.';
COMMENT ON COLUMN sag.ingest_usage.completion_tokens IS 'Tokens of the answers.';
COMMENT ON COLUMN sag.ingest_usage.estimated_tokens IS
'How many of both are estimates, where the endpoint did not say.';

-- An answer without content is being asked for by a worker, so that no other asks for it too.
ALTER TABLE sag.model_answer
ALTER COLUMN answer DROP NOT NULL,
ADD COLUMN worker_id bigint,
ADD CHECK (answer IS NOT NULL OR worker_id IS NOT NULL);
CREATE INDEX model_answer_asked ON sag.model_answer (worker_id, collection_id)
WHERE answer IS NULL;
COMMENT ON INDEX sag.model_answer_asked IS 'Finds the questions of a worker that ends or died.';
COMMENT ON TABLE sag.model_answer IS
'What a model answered for passages. None is asked for twice: not after a restart, not for another '
'document with the same passage. An answer goes with the last document that holds its passage.';
COMMENT ON COLUMN sag.model_answer.answer_key IS
'SHA-256 over the extractor''s name and what the model was shown.';
COMMENT ON COLUMN sag.model_answer.answer IS
'The event and the entities that were read in it; NULL while a worker asks for it.';
COMMENT ON COLUMN sag.model_answer.worker_id IS 'The worker that asked for it.';

ALTER TABLE sag.chunk ADD COLUMN answer_key bytea;
CREATE INDEX chunk_answer ON sag.chunk (answer_key, collection_id) WHERE answer_key IS NOT NULL;
COMMENT ON COLUMN sag.chunk.answer_key IS
'The answer of sag.model_answer that its event was made of; NULL without a language model.';
COMMENT ON INDEX sag.chunk_answer IS 'Tells whether an answer is still needed.';

ALTER TABLE sag.document ADD COLUMN task_id bigint;
COMMENT ON COLUMN sag.document.task_id IS
'The task that brought its present content: an older one that comes late changes nothing.';

-- An alias that extraction gave goes with the last event that gave it.
CREATE TABLE sag.event_alias (
    collection_id bigint NOT NULL,
    entity_id bigint NOT NULL,
    normalized_name text NOT NULL,
    event_id bigint NOT NULL,
    PRIMARY KEY (collection_id, entity_id, normalized_name, event_id),
    -- No count hangs on it, so that people can delete an alias that is wrong.
    FOREIGN KEY (collection_id, normalized_name, entity_id)
    REFERENCES sag.entity_alias ON DELETE CASCADE,
    FOREIGN KEY (collection_id, event_id) REFERENCES sag.event
);
CREATE INDEX event_alias_event ON sag.event_alias (event_id, collection_id);
COMMENT ON TABLE sag.event_alias IS 'Which event gave which further name of an entity.';
COMMENT ON COLUMN sag.event_alias.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.event_alias.entity_id IS 'The entity.';
COMMENT ON COLUMN sag.event_alias.normalized_name IS 'The alias.';
COMMENT ON COLUMN sag.event_alias.event_id IS 'The event.';
COMMENT ON INDEX sag.event_alias_event IS 'Serves deletion of an event.';

-- A change of the embedding model fills these beside the vectors in use, and then swaps them.
ALTER TABLE sag.event ADD COLUMN next_embedding halfvec;
COMMENT ON COLUMN sag.event.next_embedding IS 'Vector of the next model, during sag-pg reembed.';
ALTER TABLE sag.chunk ADD COLUMN next_embedding halfvec;
COMMENT ON COLUMN sag.chunk.next_embedding IS 'Vector of the next model, during sag-pg reembed.';
ALTER TABLE sag.entity ADD COLUMN next_embedding halfvec;
COMMENT ON COLUMN sag.entity.next_embedding IS 'Vector of the next model, during sag-pg reembed.';
ALTER TABLE sag.collection_statistic
ADD COLUMN next_embedding_total bigint NOT NULL DEFAULT 0 CHECK (next_embedding_total >= 0);
COMMENT ON COLUMN sag.collection_statistic.next_embedding_total IS
'Number of events with a vector of the next model.';

CREATE TABLE sag.reembedding (
    singleton boolean PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    model text NOT NULL,
    dimensions integer NOT NULL CHECK (dimensions BETWEEN 1 AND 4000),
    row_total bigint,
    started_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE sag.reembedding IS 'The change of the embedding model that is under way, if any.';
COMMENT ON COLUMN sag.reembedding.singleton IS 'Keeps the table to one row.';
COMMENT ON COLUMN sag.reembedding.model IS 'The next model.';
COMMENT ON COLUMN sag.reembedding.dimensions IS 'Length of its vectors.';
COMMENT ON COLUMN sag.reembedding.row_total IS
'Rows that there were to embed at the start; NULL until sag.reembed_task lists them.';
COMMENT ON COLUMN sag.reembedding.started_at IS 'When it began.';

CREATE TABLE sag.reembed_task (
    collection_id bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('event', 'chunk', 'entity')),
    row_id bigint NOT NULL,
    PRIMARY KEY (collection_id, kind, row_id)
);
COMMENT ON TABLE sag.reembed_task IS
'Rows that the next model has not seen yet; ingest adds to them during sag-pg reembed.';
COMMENT ON COLUMN sag.reembed_task.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.reembed_task.kind IS 'The table.';
COMMENT ON COLUMN sag.reembed_task.row_id IS 'event_id, chunk_id or entity_id.';
