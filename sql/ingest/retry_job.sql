CREATE OR REPLACE FUNCTION sag.retry_job(job bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.job_key(retry_job.job);
    waiting integer;
BEGIN
    -- As in sag.cancel_job().
    PERFORM sag.lock_collection(c.name) FROM sag.collection AS c WHERE c.collection_id = target;
    UPDATE sag.ingest_job AS j
    SET stopped = NULL,
        -- Whoever died while loading it does not go on; whoever lives does.
        sealed_at = CASE
            WHEN j.sealed_at IS NULL AND sag.worker_lapsed(j.loader_id) THEN now()
            ELSE j.sealed_at
        END
    WHERE j.collection_id = target AND j.job_id = retry_job.job;
    UPDATE sag.ingest_task AS t
    SET state = 'queued', attempts = 0, lapses = 0, available_at = now(), finished_at = NULL
    WHERE t.collection_id = target AND t.job_id = retry_job.job
        AND t.state IN ('failed', 'incomplete', 'queued')
        -- A file that could not be read is not here; the same ingest reads it again.
        AND EXISTS (
            SELECT FROM sag.ingest_piece AS p
            WHERE p.collection_id = target AND p.task_id = t.task_id
        )
        AND NOT EXISTS (
            SELECT FROM sag.document AS d
            WHERE d.collection_id = target AND d.source = t.source AND d.task_id > t.task_id
        )
        AND NOT EXISTS (
            SELECT FROM sag.ingest_task AS n
            WHERE n.collection_id = target AND n.source = t.source AND n.task_id > t.task_id
                AND n.state IN ('queued', 'running')
        );
    GET DIAGNOSTICS waiting = ROW_COUNT;
    IF waiting > 0 THEN
        UPDATE sag.ingest_job AS j SET cancelled_at = NULL
        WHERE j.collection_id = target AND j.job_id = retry_job.job;
    END IF;
    PERFORM pg_notify('sag_ingest', target::text);
    RETURN waiting;
END
$$;
COMMENT ON FUNCTION sag.retry_job(bigint) IS
'Puts what failed of a job back into the queue, and what is left of it where it was stopped; not '
'what newer content came for, nor what was cancelled. Returns the number of documents that wait '
'for a worker now.';
