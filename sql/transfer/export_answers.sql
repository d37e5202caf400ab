CREATE OR REPLACE FUNCTION sag.export_answers(collection text) RETURNS refcursor
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(export_answers.collection);
    lines refcursor := 'sag_export_answers';
BEGIN
    OPEN lines NO SCROLL FOR
    SELECT row_to_json(x)::text AS line
    FROM (
        SELECT encode(a.answer_key, 'hex') AS answer_key, a.extractor, a.answer
        FROM sag.model_answer AS a
        WHERE a.collection_id = target AND a.answer IS NOT NULL
        ORDER BY a.answer_key
    ) AS x;
    RETURN lines;
END
$$;
COMMENT ON FUNCTION sag.export_answers(text) IS
'Opens a cursor over the lines of answers.jsonl: what language models answered for a collection, '
'by key. For sag-pg export.';
