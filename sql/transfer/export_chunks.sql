CREATE OR REPLACE FUNCTION sag.export_chunks(collection text) RETURNS refcursor
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(export_chunks.collection);
    lines refcursor := 'sag_export_chunks';
BEGIN
    OPEN lines NO SCROLL FOR
    SELECT row_to_json(x)::text AS line
    FROM (
        SELECT
            d.source, c.ordinal, c.heading_path, c.content, c.start_offset, c.end_offset,
            c.embedding::text::json AS embedding, encode(c.answer_key, 'hex') AS answer_key
        FROM sag.document AS d
        INNER JOIN sag.chunk AS c
            ON c.collection_id = target AND c.document_id = d.document_id
        WHERE d.collection_id = target
        ORDER BY d.source COLLATE "C", c.ordinal
    ) AS x;
    RETURN lines;
END
$$;
COMMENT ON FUNCTION sag.export_chunks(text) IS
'Opens a cursor over the lines of chunks.jsonl: the chunks of a collection, by source and ordinal. '
'For sag-pg export.';
