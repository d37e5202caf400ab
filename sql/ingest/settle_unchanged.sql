CREATE OR REPLACE FUNCTION sag.settle_unchanged(worker bigint, tasks bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    WITH settled AS (
        UPDATE sag.ingest_task AS t
        SET state = 'unchanged', worker_id = NULL, finished_at = now()
        FROM (
            SELECT r.collection_id, r.task_id
            FROM sag.ingest_task AS r
            WHERE r.task_id = ANY(settle_unchanged.tasks) AND r.state = 'running'
                AND r.worker_id = settle_unchanged.worker
            -- As in sag.release_tasks().
            FOR UPDATE SKIP LOCKED
        ) AS held
        WHERE t.collection_id = held.collection_id AND t.task_id = held.task_id
        RETURNING t.collection_id, t.task_id
    ),
    without_failures AS (
        DELETE FROM sag.chunk_failure AS f USING settled AS s
        WHERE f.collection_id = s.collection_id AND f.task_id = s.task_id
    )
    DELETE FROM sag.ingest_piece AS p USING settled AS s
    WHERE p.collection_id = s.collection_id AND p.task_id = s.task_id;
END
$$;
COMMENT ON FUNCTION sag.settle_unchanged(bigint, bigint[]) IS
'Says that documents are in the collection already as they are.';
