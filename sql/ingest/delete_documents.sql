CREATE OR REPLACE FUNCTION sag.delete_documents(collection text, sources text[])
RETURNS TABLE (source text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.lock_collection(delete_documents.collection);
    document_ids bigint[];
    entity_ids bigint[];
    deltas integer[];
    removed record;
BEGIN
    -- The order of locks is that of sag.merge_batch(): collection, documents, entities, totals.
    SELECT array_agg(locked.document_id) INTO document_ids
    FROM (
        SELECT d.document_id FROM sag.document AS d
        WHERE d.collection_id = target AND d.source = ANY(delete_documents.sources)
        ORDER BY d.source COLLATE "C" FOR UPDATE
    ) AS locked;
    SELECT array_agg(counted.entity_id), array_agg(counted.events)
    INTO entity_ids, deltas
    FROM (
        SELECT l.entity_id, count(*)::integer AS events
        FROM sag.event AS e
        INNER JOIN sag.event_entity AS l
            ON l.collection_id = target AND e.event_id = l.event_id
        WHERE e.collection_id = target AND e.document_id = ANY(document_ids)
        GROUP BY l.entity_id
    ) AS counted;
    PERFORM FROM sag.entity AS n
    WHERE n.collection_id = target AND n.entity_id = ANY(entity_ids)
    ORDER BY n.normalized_name COLLATE "C" FOR UPDATE;

    UPDATE sag.entity AS n SET event_count = n.event_count - c.events
    FROM unnest(entity_ids, deltas) AS c (entity_id, events)
    WHERE n.collection_id = target AND n.entity_id = c.entity_id;
    removed := sag.remove_events(target, document_ids);
    PERFORM sag.remove_orphans(target, entity_ids);
    UPDATE sag.collection_statistic AS s
    SET event_total = s.event_total - removed.event_total,
        lexeme_total = s.lexeme_total - removed.lexeme_total,
        embedding_total = s.embedding_total - removed.embedding_total,
        statement_total = s.statement_total - removed.statement_total
    WHERE s.collection_id = target;
    RETURN QUERY
    DELETE FROM sag.document AS d
    WHERE d.collection_id = target AND d.document_id = ANY(document_ids)
    RETURNING d.source;
END
$$;
COMMENT ON FUNCTION sag.delete_documents(text, text[]) IS
'Deletes documents with their chunks, events, links and orphaned entities, in time proportional '
'to what is deleted. Returns the sources that were there.';
