CREATE OR REPLACE FUNCTION sag.settle_unchanged(
    collection text, worker bigint, tasks bigint[], content_hashes bytea[]
) RETURNS TABLE (task_id bigint)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    -- As a merge does, so that nobody replaces a document that is being confirmed.
    target bigint := sag.lock_collection(settle_unchanged.collection);
    asked record;
    confirmed text;
    settled bigint[] := '{}';
BEGIN
    FOR asked IN
        SELECT u.task_id, u.content_hash
        FROM unnest(settle_unchanged.tasks, settle_unchanged.content_hashes)
            AS u (task_id, content_hash)
    LOOP
        SELECT t.source INTO confirmed
        FROM sag.ingest_task AS t
        WHERE t.collection_id = target AND t.task_id = asked.task_id
            AND t.worker_id = settle_unchanged.worker AND t.state = 'running'
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN confirmed IS NULL;
        -- An older task that comes late cannot undo what a newer one has confirmed.
        UPDATE sag.document AS d SET task_id = greatest(d.task_id, asked.task_id)
        WHERE d.collection_id = target AND d.source = confirmed
            AND d.content_hash = asked.content_hash;
        IF FOUND THEN
            settled := settled || asked.task_id;
        END IF;
    END LOOP;
    PERFORM sag.discard_tasks(target, settled, 'unchanged');
    UPDATE sag.ingest_task AS t SET error = NULL, hint = NULL
    WHERE t.collection_id = target AND t.task_id = ANY(settled) AND t.error IS NOT NULL;
    PERFORM sag.supersede_failed(target, settled);
    RETURN QUERY SELECT u.task_id FROM unnest(settled) AS u (task_id);
END
$$;
COMMENT ON FUNCTION sag.settle_unchanged(text, bigint, bigint[], bytea[]) IS
'Settles those of a worker''s tasks whose content, by hash, is in the collection as it is, and '
'returns them. The others are still to be ingested.';
