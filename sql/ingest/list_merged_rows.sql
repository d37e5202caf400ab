CREATE OR REPLACE FUNCTION sag.list_merged_rows(target bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    new_event_ids bigint[] := sag.document_events(target, ARRAY(
        SELECT m.document_id FROM pg_temp.sag_merge_document AS m
    ));
BEGIN
    INSERT INTO sag.reembed_task (collection_id, kind, row_id)
    SELECT target, 'event', e.event_id FROM unnest(new_event_ids) AS e (event_id)
    UNION ALL
    SELECT target, 'chunk', c.chunk_id
    FROM sag.chunk AS c
    WHERE c.collection_id = target AND c.chunk_id = ANY(ARRAY(
            SELECT e.chunk_id FROM sag.event AS e
            WHERE e.collection_id = target AND e.event_id = ANY(new_event_ids)
        ))
        -- Chunks whose own text is their event have neither lexemes nor a vector.
        AND c.lexemes IS NOT NULL
    UNION ALL
    SELECT target, 'entity', n.entity_id
    FROM sag.entity AS n
    WHERE n.collection_id = target AND n.entity_id = ANY(ARRAY(
            SELECT x.entity_id FROM pg_temp.sag_merge_entity AS x
        ))
        AND n.embedding IS NOT NULL AND n.next_embedding IS NULL
    ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION sag.list_merged_rows(bigint) IS
'Lists what a batch brought for the next embedding model, during sag-pg reembed. A step of '
'sag.merge_batch().';
