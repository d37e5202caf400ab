CREATE OR REPLACE FUNCTION sag.supersede_failed(target bigint, tasks bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM sag.discard_tasks(target, ARRAY(
        SELECT older.task_id
        FROM unnest(supersede_failed.tasks) AS k (task_id)
        -- As in sag.document_events().
        CROSS JOIN LATERAL (
            SELECT n.source FROM sag.ingest_task AS n
            WHERE n.collection_id = target AND n.task_id = k.task_id
            OFFSET 0
        ) AS newer
        CROSS JOIN LATERAL (
            SELECT x.task_id FROM sag.ingest_task AS x
            WHERE x.collection_id = target AND x.source = newer.source
                AND x.state IN ('failed', 'incomplete') AND x.task_id < k.task_id
            OFFSET 0
            FOR UPDATE
        ) AS older
    ), 'superseded');
END
$$;
COMMENT ON FUNCTION sag.supersede_failed(bigint, bigint[]) IS
'Of the sources that tasks brought in, gives up what failed before: nobody is to mend it any more. '
'The caller holds the collection.';
