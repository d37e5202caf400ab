CREATE OR REPLACE FUNCTION sag.job_failures(job bigint, row_limit integer DEFAULT 1000)
RETURNS TABLE (source text, ordinal integer, attempts integer, message text, hint text)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.job_key(job_failures.job);
BEGIN
    RETURN QUERY
    SELECT x.source, x.ordinal, x.attempts, x.message, x.hint
    FROM (
        SELECT
            t.task_id, t.source, f.ordinal, coalesce(f.attempts, t.attempts) AS attempts,
            coalesce(f.error, t.error, 'unknown') AS message, coalesce(f.hint, t.hint) AS hint
        FROM sag.ingest_task AS t
        LEFT JOIN sag.chunk_failure AS f
            ON f.collection_id = t.collection_id AND f.task_id = t.task_id
        WHERE t.collection_id = target AND t.job_id = job_failures.job AND t.state = 'failed'
        UNION ALL
        -- One that waits for another try has failed so far.
        SELECT t.task_id, t.source, f.ordinal, f.attempts, f.error, f.hint
        FROM sag.chunk_failure AS f
        CROSS JOIN LATERAL (
            SELECT o.task_id, o.source FROM sag.ingest_task AS o
            WHERE o.collection_id = target AND o.task_id = f.task_id
                AND o.job_id = job_failures.job
                AND o.state IN ('incomplete', 'queued', 'running')
            -- One by one, for without statistics all that waits would be looked at.
            OFFSET 0
        ) AS t
        WHERE f.collection_id = target
    ) AS x
    ORDER BY x.task_id, x.ordinal
    LIMIT job_failures.row_limit;
END
$$;
COMMENT ON FUNCTION sag.job_failures(bigint, integer) IS
'Documents of a job that failed, and chunks for which a model failed, in order, with how often and '
'why.';
