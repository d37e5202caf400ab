CREATE OR REPLACE FUNCTION sag.supersede_tasks(target bigint, sources text[])
RETURNS TABLE (source text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    superseded bigint[] := ARRAY(
        SELECT t.task_id
        FROM (SELECT DISTINCT u.source FROM unnest(supersede_tasks.sources) AS u (source)) AS s
        -- As in sag.document_events().
        CROSS JOIN LATERAL (
            SELECT x.task_id FROM sag.ingest_task AS x
            WHERE x.collection_id = target AND x.source = s.source
                -- What failed keeps its text for a retry; it goes as well.
                AND x.state IN ('queued', 'running', 'failed', 'incomplete')
            OFFSET 0
            FOR UPDATE
        ) AS t
    );
BEGIN
    IF superseded = '{}' THEN
        RETURN;
    END IF;
    PERFORM sag.discard_tasks(target, superseded, 'superseded');
    RETURN QUERY
    SELECT DISTINCT t.source
    FROM sag.ingest_task AS t
    WHERE t.collection_id = target AND t.task_id = ANY(superseded);
END
$$;
COMMENT ON FUNCTION sag.supersede_tasks(bigint, text[]) IS
'Takes sources out of the queue, whoever has them, and what failed of them out of the reach of '
'sag.retry_job(). Returns those that were there. The caller holds the collection.';
