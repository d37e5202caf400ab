CREATE OR REPLACE FUNCTION sag.hold_tasks(target bigint, worker bigint) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    -- OFFSET 0 as in sag.document_events().
    RETURN ARRAY(
        SELECT t.task_id
        FROM sag.ingest_task AS t
        WHERE t.collection_id = target AND t.worker_id = hold_tasks.worker AND t.state = 'running'
            AND t.task_id = ANY(ARRAY(
                SELECT b.task_id FROM pg_temp.sag_batch_document AS b WHERE b.task_id IS NOT NULL
            ))
            AND NOT EXISTS (
                SELECT FROM sag.document AS d
                WHERE d.collection_id = target AND d.source = t.source AND d.task_id > t.task_id
                OFFSET 0
            )
        -- The caller holds the collection and waits for nothing else: a task that somebody is
        -- taking away from the worker right now is lost.
        FOR UPDATE OF t SKIP LOCKED
    );
END
$$;
COMMENT ON FUNCTION sag.hold_tasks(bigint, bigint) IS
'Those tasks of the batch that are still the worker''s, and that no newer content came for; they '
'stay so until the transaction ends. A step of sag.merge_batch().';
