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
    SELECT x.source
    FROM (
        (
            SELECT d.source
            FROM sag.document AS d
            WHERE d.collection_id = target AND d.source > document_sources.after_source
            ORDER BY d.source
            LIMIT document_sources.row_limit
        )
        UNION
        (
            SELECT DISTINCT t.source
            FROM sag.ingest_task AS t
            WHERE t.collection_id = target AND t.source > document_sources.after_source
                AND t.state IN ('queued', 'running')
            ORDER BY t.source
            LIMIT document_sources.row_limit
        )
    ) AS x
    ORDER BY x.source
    LIMIT document_sources.row_limit;
END
$$;
COMMENT ON FUNCTION sag.document_sources(text, text, integer) IS
'The sources of a collection, with those on their way into it, page by page: the next ones after '
'a source, in order.';
