CREATE OR REPLACE FUNCTION sag.job_failures(job bigint, row_limit integer DEFAULT 1000)
RETURNS TABLE (source text, ordinal integer, attempts integer, message text, hint text)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT
        t.source, f.ordinal, coalesce(f.attempts, t.attempts),
        coalesce(f.error, t.error, 'unknown'), coalesce(f.hint, t.hint)
    FROM sag.ingest_task AS t
    LEFT JOIN sag.chunk_failure AS f
        ON f.collection_id = t.collection_id AND f.task_id = t.task_id
    WHERE t.job_id = job_failures.job
        AND (t.state = 'failed' OR (
            -- One that waits for another try has failed so far.
            t.state IN ('incomplete', 'queued', 'running') AND f.ordinal IS NOT NULL
        ))
    ORDER BY t.task_id, f.ordinal
    LIMIT job_failures.row_limit;
END
$$;
COMMENT ON FUNCTION sag.job_failures(bigint, integer) IS
'Documents of a job that failed, and chunks for which a model failed, in order, with how often and '
'why.';
