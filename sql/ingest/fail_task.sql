CREATE OR REPLACE FUNCTION sag.fail_task(worker bigint, task bigint, error text, hint text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    -- The same text would fail again.
    UPDATE sag.ingest_task AS t
    SET state = 'failed',
        attempts = t.attempts + 1,
        finished_at = now(),
        worker_id = NULL,
        error = fail_task.error,
        hint = fail_task.hint
    WHERE t.task_id = fail_task.task AND t.worker_id = fail_task.worker AND t.state = 'running';
END
$$;
COMMENT ON FUNCTION sag.fail_task(bigint, bigint, text, text) IS
'Says that a document cannot be ingested as it is. Where a model failed, sag.merge_batch() has it '
'tried again.';
