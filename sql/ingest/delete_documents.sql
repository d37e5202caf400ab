CREATE OR REPLACE FUNCTION sag.delete_documents(collection text, sources text[])
RETURNS TABLE (source text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
-- A plan made for the very number of a collection that ANALYZE has not seen yet expects one row of
-- it, and reads them all; so do the checks of foreign keys, for each row that is deleted.
SET plan_cache_mode TO 'force_generic_plan'
AS $$
#variable_conflict use_column
DECLARE
    -- Held to the end: before any other lock, which is what keeps writers from a deadlock.
    target bigint := sag.lock_collection(delete_documents.collection);
    -- Before the rest, so that no worker brings one of them back.
    unqueued text[] := ARRAY(
        SELECT t.source FROM sag.supersede_tasks(target, delete_documents.sources) AS t
    );
    document_ids bigint[];
    event_ids bigint[];
    answer_keys bytea[];
    without_event bigint[];
BEGIN
    -- As in sag.document_events().
    document_ids := ARRAY(
        SELECT d.document_id
        FROM (SELECT DISTINCT u.source FROM unnest(delete_documents.sources) AS u (source)) AS s
        CROSS JOIN LATERAL (
            SELECT x.document_id FROM sag.document AS x
            WHERE x.collection_id = target AND x.source = s.source
            OFFSET 0
        ) AS d
    );
    event_ids := sag.document_events(target, document_ids);
    SELECT sag.count_events(target, array_agg(l.entity_id), array_agg(-l.link_count))
    INTO without_event
    FROM sag.event_links(target, event_ids) AS l;
    answer_keys := sag.remove_events(target, event_ids);
    IF without_event IS NOT NULL THEN
        PERFORM sag.remove_orphans(target, without_event);
    END IF;
    IF answer_keys IS NOT NULL THEN
        PERFORM sag.forget_answers(target, answer_keys);
    END IF;
    RETURN QUERY
    WITH deleted AS (
        DELETE FROM sag.document AS d
        WHERE d.collection_id = target AND d.document_id = ANY(document_ids)
        RETURNING d.source
    )
    SELECT x.source FROM deleted AS x
    UNION
    SELECT u.source FROM unnest(unqueued) AS u (source);
END
$$;
COMMENT ON FUNCTION sag.delete_documents(text, text[]) IS
'Deletes documents with their chunks, events, links and orphaned entities, in time proportional '
'to what is deleted, and takes them out of the queue. Returns the sources that were there.';
