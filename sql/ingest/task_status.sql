CREATE OR REPLACE VIEW sag.task_status AS
SELECT
    c.name AS collection,
    t.job_id,
    t.task_id,
    t.source,
    t.state,
    t.attempts,
    t.max_attempts,
    t.lapses,
    t.available_at,
    w.name AS worker,
    w.heartbeat_at,
    t.state = 'running' AND sag.worker_lapsed(t.worker_id) AS lease_lapsed,
    t.chunk_count,
    (
        SELECT count(*) FROM sag.chunk_failure AS f
        WHERE f.collection_id = t.collection_id AND f.task_id = t.task_id
    ) AS failed_chunk_count,
    t.error,
    t.hint,
    t.created_at,
    t.finished_at
FROM sag.ingest_task AS t
INNER JOIN sag.collection AS c ON t.collection_id = c.collection_id
LEFT JOIN sag.ingest_worker AS w ON t.worker_id = w.worker_id;
COMMENT ON VIEW sag.task_status IS
'Each document of each job: its state, the worker that has it, how often it failed and why.';
COMMENT ON COLUMN sag.task_status.collection IS 'The collection.';
COMMENT ON COLUMN sag.task_status.job_id IS 'The job it belongs to.';
COMMENT ON COLUMN sag.task_status.task_id IS 'Key of the task.';
COMMENT ON COLUMN sag.task_status.source IS 'The document''s source.';
COMMENT ON COLUMN sag.task_status.state IS 'As in sag.ingest_task.';
COMMENT ON COLUMN sag.task_status.attempts IS 'How often a model, or the document itself, failed.';
COMMENT ON COLUMN sag.task_status.max_attempts IS 'How many failures there may be.';
COMMENT ON COLUMN sag.task_status.lapses IS 'How often its worker died.';
COMMENT ON COLUMN sag.task_status.available_at IS 'When it may be tried again.';
COMMENT ON COLUMN sag.task_status.worker IS 'The worker that has it: host and process.';
COMMENT ON COLUMN sag.task_status.heartbeat_at IS 'When that worker was last heard of.';
COMMENT ON COLUMN sag.task_status.lease_lapsed IS
'Whether that worker is gone, so that others get the task.';
COMMENT ON COLUMN sag.task_status.chunk_count IS 'Chunks of the document.';
COMMENT ON COLUMN sag.task_status.failed_chunk_count IS
'Chunks for which a model failed, as long as it has not answered.';
COMMENT ON COLUMN sag.task_status.error IS 'Why it failed, or what failed the last time.';
COMMENT ON COLUMN sag.task_status.hint IS 'What would be right.';
COMMENT ON COLUMN sag.task_status.created_at IS 'When it was queued.';
COMMENT ON COLUMN sag.task_status.finished_at IS 'When it was dealt with; NULL before.';
