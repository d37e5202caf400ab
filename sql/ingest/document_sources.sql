CREATE OR REPLACE FUNCTION sag.document_sources(
    collection text, after_source text DEFAULT '', row_limit integer DEFAULT 1000
) RETURNS TABLE (source text)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(document_sources.collection);
BEGIN
    RETURN QUERY
    SELECT d.source
    FROM sag.document AS d
    WHERE d.collection_id = target AND d.source > document_sources.after_source
    ORDER BY d.source
    LIMIT document_sources.row_limit;
END
$$;
COMMENT ON FUNCTION sag.document_sources(text, text, integer) IS
'The sources of a collection page by page: the next ones after a source, in order.';
