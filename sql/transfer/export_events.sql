CREATE OR REPLACE FUNCTION sag.export_events(collection text) RETURNS refcursor
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(export_events.collection);
    lines refcursor := 'sag_export_events';
BEGIN
    OPEN lines NO SCROLL FOR
    SELECT row_to_json(x)::text AS line
    FROM (
        SELECT d.source, c.ordinal, e.title, e.content, e.embedding::text::json AS embedding
        FROM sag.document AS d
        INNER JOIN sag.chunk AS c
            ON c.collection_id = target AND c.document_id = d.document_id
        INNER JOIN sag.event AS e ON e.collection_id = target AND e.chunk_id = c.chunk_id
        WHERE d.collection_id = target
        ORDER BY d.source COLLATE "C", c.ordinal
    ) AS x;
    RETURN lines;
END
$$;
COMMENT ON FUNCTION sag.export_events(text) IS
'Opens a cursor over the lines of events.jsonl: the events of a collection in the order of their '
'chunks. For sag-pg export.';
