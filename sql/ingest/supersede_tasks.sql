CREATE OR REPLACE FUNCTION sag.supersede_tasks(target bigint, source text) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    superseded bigint[] := ARRAY(
        SELECT t.task_id
        FROM sag.ingest_task AS t
        WHERE t.collection_id = target AND t.source = supersede_tasks.source
            -- What failed keeps its text for a retry; it goes as well.
            AND t.state IN ('queued', 'running', 'failed', 'incomplete')
        ORDER BY t.task_id
        FOR UPDATE
    );
BEGIN
    PERFORM sag.discard_tasks(target, superseded, 'superseded');
    RETURN cardinality(superseded);
END
$$;
COMMENT ON FUNCTION sag.supersede_tasks(bigint, text) IS
'Takes a source out of the queue, whoever has it, and what failed of it out of the reach of '
'sag.retry_job(). Returns the number of its tasks.';
