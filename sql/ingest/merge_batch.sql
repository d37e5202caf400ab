DO $$
BEGIN
    IF to_regprocedure('sag.merge_batch(text)') IS NOT NULL THEN
        DROP FUNCTION sag.merge_batch(text);
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION sag.merge_batch(collection text, worker bigint DEFAULT NULL)
RETURNS TABLE (source text, state text, chunk_count integer)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
-- As in sag.delete_documents().
SET plan_cache_mode TO 'force_generic_plan'
AS $$
#variable_conflict use_column
DECLARE
    -- Held to the end: before any other lock, which is what keeps writers from a deadlock.
    target bigint := sag.lock_collection(merge_batch.collection);
    held bigint[];
    replaced_event_ids bigint[];
    without_event bigint[];
BEGIN
    PERFORM sag.check_batch();
    ANALYZE pg_temp.sag_batch_chunk, pg_temp.sag_batch_entity;
    held := sag.hold_tasks(target, merge_batch.worker);
    PERFORM sag.merge_documents(target, held);
    replaced_event_ids := sag.document_events(target, ARRAY(
        SELECT m.document_id FROM pg_temp.sag_merge_document AS m WHERE NOT m.is_new
    ));
    without_event := sag.merge_entities(target, replaced_event_ids);
    IF cardinality(replaced_event_ids) > 0 THEN
        PERFORM sag.remove_events(target, replaced_event_ids);
    END IF;
    PERFORM sag.merge_events(target);
    IF EXISTS (SELECT FROM pg_temp.sag_batch_entity AS b WHERE b.alias_of IS NOT NULL) THEN
        PERFORM sag.merge_aliases(target);
    END IF;
    IF without_event IS NOT NULL THEN
        PERFORM sag.remove_orphans(target, without_event);
    END IF;
    IF EXISTS (SELECT FROM sag.reembedding) THEN
        PERFORM sag.list_merged_rows(target);
    END IF;
    IF cardinality(held) > 0 THEN
        PERFORM sag.settle_tasks(target, held);
    END IF;

    RETURN QUERY
    SELECT
        b.source,
        CASE
            WHEN m.is_new THEN 'added'
            WHEN NOT m.is_new THEN 'replaced'
            WHEN b.task_id IS NULL OR b.task_id = ANY(held) THEN 'unchanged'
            ELSE 'superseded'
        END,
        coalesce(c.chunk_count, 0)
    FROM pg_temp.sag_batch_document AS b
    LEFT JOIN pg_temp.sag_merge_document AS m ON m.document_no = b.document_no
    LEFT JOIN (
        SELECT x.document_no, count(*)::integer AS chunk_count
        FROM pg_temp.sag_batch_chunk AS x
        GROUP BY x.document_no
    ) AS c ON c.document_no = b.document_no
    ORDER BY b.document_no;
    DROP TABLE pg_temp.sag_batch_document, pg_temp.sag_batch_chunk, pg_temp.sag_batch_entity,
    pg_temp.sag_batch_failure, pg_temp.sag_merge_document, pg_temp.sag_merge_link,
    pg_temp.sag_merge_entity;
END
$$;
COMMENT ON FUNCTION sag.merge_batch(text, bigint) IS
'Takes over the batch that sag.begin_batch() opened: adds new documents, replaces changed ones '
'with all that hung on them, settles their tasks, and says what became of each. What a worker has '
'no longer, or newer content came for, is superseded and left out. Any number may run at once; in '
'one collection they wait for each other.';
