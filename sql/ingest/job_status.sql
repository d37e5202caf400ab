CREATE OR REPLACE VIEW sag.job_status AS
SELECT
    c.name AS collection,
    j.job_id,
    j.origin,
    CASE
        WHEN j.cancelled_at IS NOT NULL THEN 'cancelled'
        WHEN j.stopped IS NOT NULL THEN 'stopped'
        WHEN j.sealed_at IS NULL AND j.origin = 'command' AND sag.worker_lapsed(j.loader_id)
            THEN 'interrupted'
        WHEN j.sealed_at IS NULL AND j.origin = 'command' THEN 'loading'
        WHEN n.running > 0 THEN 'running'
        WHEN n.queued + n.waiting > 0 THEN 'queued'
        WHEN j.origin = 'sql' THEN 'open'
        WHEN n.failed + n.incomplete > 0 THEN 'failed'
        ELSE 'finished'
    END AS state,
    j.started_at,
    CASE
        WHEN n.queued + n.waiting + n.running = 0 AND j.origin = 'command'
            THEN greatest(n.finished_at, j.sealed_at, j.cancelled_at)
    END AS finished_at,
    j.stopped,
    j.settings,
    w.name AS loader,
    n.queued,
    n.running,
    n.waiting,
    n.added,
    n.replaced,
    n.unchanged + j.unchanged_count AS unchanged,
    n.incomplete,
    n.failed,
    n.superseded,
    n.cancelled,
    n.chunk_count,
    f.failed_chunk_count,
    u.requests,
    u.prompt_tokens,
    u.completion_tokens,
    u.estimated_tokens
FROM sag.ingest_job AS j
INNER JOIN sag.collection AS c ON j.collection_id = c.collection_id
LEFT JOIN sag.ingest_worker AS w ON j.loader_id = w.worker_id
CROSS JOIN
    LATERAL (
        SELECT
            count(*) FILTER (WHERE t.state = 'queued' AND t.available_at <= now()) AS queued,
            count(*) FILTER (WHERE t.state = 'running') AS running,
            count(*) FILTER (WHERE t.state = 'queued' AND t.available_at > now()) AS waiting,
            count(*) FILTER (WHERE t.state = 'added') AS added,
            count(*) FILTER (WHERE t.state = 'replaced') AS replaced,
            count(*) FILTER (WHERE t.state = 'unchanged') AS unchanged,
            count(*) FILTER (WHERE t.state = 'incomplete') AS incomplete,
            count(*) FILTER (WHERE t.state = 'failed') AS failed,
            count(*) FILTER (WHERE t.state = 'superseded') AS superseded,
            count(*) FILTER (WHERE t.state = 'cancelled') AS cancelled,
            coalesce(sum(t.chunk_count), 0)::bigint AS chunk_count,
            max(t.finished_at) AS finished_at
        FROM sag.ingest_task AS t
        WHERE t.collection_id = j.collection_id AND t.job_id = j.job_id
    ) AS n
CROSS JOIN
    LATERAL (
        SELECT count(*) AS failed_chunk_count
        FROM sag.chunk_failure AS x
        INNER JOIN sag.ingest_task AS t
            ON x.collection_id = t.collection_id AND x.task_id = t.task_id
        WHERE x.collection_id = j.collection_id AND t.job_id = j.job_id
    ) AS f
CROSS JOIN LATERAL (
    SELECT
        coalesce(sum(s.requests), 0)::bigint AS requests,
        coalesce(sum(s.prompt_tokens), 0)::bigint AS prompt_tokens,
        coalesce(sum(s.completion_tokens), 0)::bigint AS completion_tokens,
        coalesce(sum(s.estimated_tokens), 0)::bigint AS estimated_tokens
    FROM sag.ingest_usage AS s
    WHERE s.collection_id = j.collection_id AND s.job_id = j.job_id
) AS u;
COMMENT ON VIEW sag.job_status IS
'How far each job of the ingest is, what became of its documents, and what its models were asked. '
'States: loading, queued, running; finished, failed; stopped, cancelled; interrupted where whoever '
'queued it died; open for what SQL clients queue.';
COMMENT ON COLUMN sag.job_status.collection IS 'The collection it ingests into.';
COMMENT ON COLUMN sag.job_status.job_id IS
'Key of the job; for sag.cancel_job() and sag.retry_job().';
COMMENT ON COLUMN sag.job_status.origin IS 'command, or sql for what sag_ingest() queues.';
COMMENT ON COLUMN sag.job_status.state IS 'How far it is; see the view.';
COMMENT ON COLUMN sag.job_status.started_at IS 'When it was made.';
COMMENT ON COLUMN sag.job_status.finished_at IS
'When its last document was dealt with; NULL while there are others.';
COMMENT ON COLUMN sag.job_status.stopped IS 'Why its documents wait and are not taken.';
COMMENT ON COLUMN sag.job_status.settings IS
'How its documents are processed; NULL where any worker may take them.';
COMMENT ON COLUMN sag.job_status.loader IS 'The worker that queues its documents, while it lives.';
COMMENT ON COLUMN sag.job_status.queued IS 'Documents that are ready to be taken.';
COMMENT ON COLUMN sag.job_status.running IS 'Documents that workers have.';
COMMENT ON COLUMN sag.job_status.waiting IS 'Documents to be tried again later.';
COMMENT ON COLUMN sag.job_status.added IS 'Documents that are new.';
COMMENT ON COLUMN sag.job_status.replaced IS 'Documents whose content had changed.';
COMMENT ON COLUMN sag.job_status.unchanged IS 'Documents that were there already.';
COMMENT ON COLUMN sag.job_status.incomplete IS
'Documents that are in, but for some of whose chunks a model failed.';
COMMENT ON COLUMN sag.job_status.failed IS 'Documents that failed.';
COMMENT ON COLUMN sag.job_status.superseded IS
'Documents that newer content or a deletion took the place of.';
COMMENT ON COLUMN sag.job_status.cancelled IS 'Documents that were given up.';
COMMENT ON COLUMN sag.job_status.chunk_count IS 'Chunks of the documents that are in.';
COMMENT ON COLUMN sag.job_status.failed_chunk_count IS
'Chunks for which a model failed, as long as it has not answered.';
COMMENT ON COLUMN sag.job_status.requests IS 'Requests to models, each try counted.';
COMMENT ON COLUMN sag.job_status.prompt_tokens IS 'Tokens of the questions.';
COMMENT ON COLUMN sag.job_status.completion_tokens IS 'Tokens of the answers.';
COMMENT ON COLUMN sag.job_status.estimated_tokens IS 'How many of both are estimates.';
