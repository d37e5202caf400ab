CREATE OR REPLACE FUNCTION sag.export_documents(collection text) RETURNS TABLE (line jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(export_documents.collection);
BEGIN
    RETURN QUERY
    SELECT jsonb_build_object(
        'source', d.source, 'title', d.title, 'metadata', d.metadata,
        'content_hash', encode(d.content_hash, 'hex'), 'extractor', d.extractor
    )
    FROM sag.document AS d
    WHERE d.collection_id = target
    ORDER BY d.source COLLATE "C";
END
$$;
COMMENT ON FUNCTION sag.export_documents(text) IS
'The documents of a collection for sag-pg export, by source.';
