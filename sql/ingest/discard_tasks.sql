CREATE OR REPLACE FUNCTION sag.discard_tasks(target bigint, tasks bigint[], state text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    UPDATE sag.ingest_task AS t
    SET state = discard_tasks.state, worker_id = NULL, finished_at = now()
    WHERE t.collection_id = target AND t.task_id = ANY(discard_tasks.tasks);
    DELETE FROM sag.ingest_piece AS p
    WHERE p.collection_id = target AND p.task_id = ANY(discard_tasks.tasks);
    DELETE FROM sag.chunk_failure AS f
    WHERE f.collection_id = target AND f.task_id = ANY(discard_tasks.tasks);
END
$$;
COMMENT ON FUNCTION sag.discard_tasks(bigint, bigint[], text) IS
'Ends tasks that nobody is to work on, as superseded, cancelled or unchanged, and drops their '
'texts. The caller has them locked.';
