CREATE OR REPLACE FUNCTION sag.remove_events(
    target bigint, document_ids bigint[],
    OUT event_total bigint, OUT lexeme_total bigint, OUT embedding_total bigint,
    OUT statement_total bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    DELETE FROM sag.event_entity AS l
    USING sag.event AS e
    WHERE e.collection_id = target AND e.document_id = ANY(document_ids)
        AND l.collection_id = target AND l.event_id = e.event_id;

    WITH removed AS (
        DELETE FROM sag.event AS e
        WHERE e.collection_id = target AND e.document_id = ANY(document_ids)
        RETURNING e.lexeme_count, e.embedding IS NOT NULL AS is_embedded,
            e.content IS NOT NULL AS is_statement
    )
    SELECT
        count(*), coalesce(sum(r.lexeme_count), 0), count(*) FILTER (WHERE r.is_embedded),
        count(*) FILTER (WHERE r.is_statement)
    INTO event_total, lexeme_total, embedding_total, statement_total
    FROM removed AS r;

    DELETE FROM sag.chunk AS c
    WHERE c.collection_id = target AND c.document_id = ANY(document_ids);
END
$$;
COMMENT ON FUNCTION sag.remove_events(bigint, bigint[]) IS
'Deletes links, events and chunks of documents and returns the totals to be subtracted. Counts of '
'entities are the caller''s part: sag.delete_documents() and sag.merge_batch().';
