CREATE OR REPLACE VIEW sag.job_status AS
-- All tasks are counted in one pass: one job may have most of them, and the planner takes each for
-- such a one.
WITH counted AS (
    SELECT
        t.collection_id,
        t.job_id,
        count(*) FILTER (WHERE t.state = 'queued' AND t.available_at <= now()) AS queued,
        count(*) FILTER (WHERE t.state = 'running') AS running,
        count(*) FILTER (WHERE t.state = 'queued' AND t.available_at > now()) AS waiting,
        count(*) FILTER (WHERE t.state IN ('queued', 'running')) AS live,
        count(*) FILTER (WHERE t.state = 'added') AS added,
        count(*) FILTER (WHERE t.state = 'replaced') AS replaced,
        count(*) FILTER (WHERE t.state = 'unchanged') AS unchanged,
        count(*) FILTER (WHERE t.state = 'incomplete') AS incomplete,
        count(*) FILTER (WHERE t.state = 'failed') AS failed,
        count(*) FILTER (WHERE t.state = 'superseded') AS superseded,
        count(*) FILTER (WHERE t.state = 'cancelled') AS cancelled,
        sum(t.chunk_count)::bigint AS chunk_count,
        max(t.finished_at) AS finished_at
    FROM sag.ingest_task AS t
    GROUP BY t.collection_id, t.job_id
),

failed_chunk AS (
    SELECT
        t.collection_id,
        t.job_id,
        count(*) AS failed_chunk_count
    FROM sag.chunk_failure AS x
    INNER JOIN sag.ingest_task AS t
        ON x.collection_id = t.collection_id AND x.task_id = t.task_id
    GROUP BY t.collection_id, t.job_id
)

SELECT
    c.name AS collection,
    j.job_id,
    j.origin,
    CASE
        WHEN j.cancelled_at IS NOT NULL THEN 'cancelled'
        -- Where it ended all the same, nothing is kept from the workers, nor will be.
        WHEN j.stopped IS NOT NULL AND (
            j.origin = 'sql' OR j.sealed_at IS NULL OR n.live > 0
        ) THEN 'stopped'
        WHEN j.sealed_at IS NULL AND j.origin = 'command' AND sag.worker_lapsed(j.loader_id)
            THEN 'interrupted'
        WHEN j.sealed_at IS NULL AND j.origin = 'command' THEN 'loading'
        WHEN n.running > 0 THEN 'running'
        WHEN n.live > 0 THEN 'queued'
        WHEN j.origin = 'sql' THEN 'open'
        WHEN n.failed + n.incomplete > 0 THEN 'failed'
        ELSE 'finished'
    END AS state,
    j.started_at,
    CASE
        WHEN coalesce(n.live, 0) = 0 AND j.origin = 'command'
            THEN greatest(n.finished_at, j.sealed_at, j.cancelled_at)
    END AS finished_at,
    j.stopped,
    j.settings,
    w.name AS loader,
    coalesce(n.queued, 0) AS queued,
    coalesce(n.running, 0) AS running,
    coalesce(n.waiting, 0) AS waiting,
    coalesce(n.added, 0) AS added,
    coalesce(n.replaced, 0) AS replaced,
    coalesce(n.unchanged, 0) + j.unchanged_count AS unchanged,
    coalesce(n.incomplete, 0) AS incomplete,
    coalesce(n.failed, 0) AS failed,
    coalesce(n.superseded, 0) AS superseded,
    coalesce(n.cancelled, 0) AS cancelled,
    coalesce(n.chunk_count, 0) AS chunk_count,
    coalesce(f.failed_chunk_count, 0) AS failed_chunk_count,
    u.requests,
    u.prompt_tokens,
    u.completion_tokens,
    u.estimated_tokens
FROM sag.ingest_job AS j
INNER JOIN sag.collection AS c ON j.collection_id = c.collection_id
LEFT JOIN sag.ingest_worker AS w ON j.loader_id = w.worker_id
LEFT JOIN counted AS n ON j.collection_id = n.collection_id AND j.job_id = n.job_id
LEFT JOIN failed_chunk AS f ON j.collection_id = f.collection_id AND j.job_id = f.job_id
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
