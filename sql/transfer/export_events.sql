CREATE OR REPLACE FUNCTION sag.export_events(collection text) RETURNS TABLE (line jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(export_events.collection);
BEGIN
    RETURN QUERY
    SELECT jsonb_build_object(
        'source', d.source, 'ordinal', c.ordinal, 'title', e.title, 'content', e.content,
        'embedding', e.embedding::text
    )
    FROM sag.event AS e
    INNER JOIN sag.chunk AS c ON c.collection_id = target AND c.chunk_id = e.chunk_id
    INNER JOIN sag.document AS d
        ON d.collection_id = target AND d.document_id = e.document_id
    WHERE e.collection_id = target
    ORDER BY d.source COLLATE "C", c.ordinal;
END
$$;
COMMENT ON FUNCTION sag.export_events(text) IS
'The events of a collection for sag-pg export, in the order of their chunks.';
