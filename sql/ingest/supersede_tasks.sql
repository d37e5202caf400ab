CREATE OR REPLACE FUNCTION sag.supersede_tasks(target bigint, source text) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    superseded_ids bigint[];
BEGIN
    WITH superseded AS (
        UPDATE sag.ingest_task AS t
        SET state = 'superseded', worker_id = NULL, finished_at = now()
        WHERE t.collection_id = target AND t.source = supersede_tasks.source
            AND t.state IN ('queued', 'running')
        RETURNING t.task_id
    )
    SELECT array_agg(s.task_id) INTO superseded_ids FROM superseded AS s;
    DELETE FROM sag.ingest_piece AS p
    WHERE p.collection_id = target AND p.task_id = ANY(superseded_ids);
    DELETE FROM sag.chunk_failure AS f
    WHERE f.collection_id = target AND f.task_id = ANY(superseded_ids);
    RETURN coalesce(cardinality(superseded_ids), 0);
END
$$;
COMMENT ON FUNCTION sag.supersede_tasks(bigint, text) IS
'Takes a source out of the queue, whoever has it. Returns the number of its tasks.';
