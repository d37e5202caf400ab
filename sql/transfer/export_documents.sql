CREATE OR REPLACE FUNCTION sag.export_documents(collection text) RETURNS refcursor
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(export_documents.collection);
    lines refcursor := 'sag_export_documents';
BEGIN
    OPEN lines NO SCROLL FOR
    SELECT row_to_json(x)::text AS line
    FROM (
        SELECT
            d.source, d.title, d.metadata, d.extractor,
            encode(d.content_hash, 'hex') AS content_hash
        FROM sag.document AS d
        WHERE d.collection_id = target
        ORDER BY d.source COLLATE "C"
    ) AS x;
    RETURN lines;
END
$$;
COMMENT ON FUNCTION sag.export_documents(text) IS
'Opens a cursor over the lines of documents.jsonl: the documents of a collection, by source. For '
'sag-pg export.';
