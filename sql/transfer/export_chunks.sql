CREATE OR REPLACE FUNCTION sag.export_chunks(collection text) RETURNS TABLE (line jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(export_chunks.collection);
BEGIN
    RETURN QUERY
    SELECT jsonb_build_object(
        'source', d.source, 'ordinal', c.ordinal, 'heading_path', c.heading_path,
        'content', c.content, 'start_offset', c.start_offset, 'end_offset', c.end_offset,
        'embedding', c.embedding::text, 'answer_key', encode(c.answer_key, 'hex')
    )
    FROM sag.chunk AS c
    INNER JOIN sag.document AS d
        ON d.collection_id = target AND d.document_id = c.document_id
    WHERE c.collection_id = target
    ORDER BY d.source COLLATE "C", c.ordinal;
END
$$;
COMMENT ON FUNCTION sag.export_chunks(text) IS
'The chunks of a collection for sag-pg export, by source and ordinal.';
