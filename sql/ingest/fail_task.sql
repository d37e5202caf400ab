CREATE OR REPLACE FUNCTION sag.fail_task(worker bigint, task bigint, error text, hint text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    UPDATE sag.ingest_task AS t
    SET attempts = t.attempts + 1,
        state = CASE WHEN t.attempts + 1 < t.max_attempts THEN 'queued' ELSE 'failed' END,
        available_at = now() + sag.retry_delay(t.attempts + 1),
        finished_at = CASE WHEN t.attempts + 1 < t.max_attempts THEN NULL ELSE now() END,
        worker_id = NULL,
        error = fail_task.error,
        hint = fail_task.hint
    WHERE t.task_id = fail_task.task AND t.worker_id = fail_task.worker AND t.state = 'running';
END
$$;
COMMENT ON FUNCTION sag.fail_task(bigint, bigint, text, text) IS
'Says that a worker could not ingest a document: it is tried again later, or has failed.';
