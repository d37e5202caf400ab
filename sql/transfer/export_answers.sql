CREATE OR REPLACE FUNCTION sag.export_answers(collection text) RETURNS TABLE (line jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(export_answers.collection);
BEGIN
    RETURN QUERY
    SELECT jsonb_build_object(
        'answer_key', encode(a.answer_key, 'hex'), 'extractor', a.extractor, 'answer', a.answer
    )
    FROM sag.model_answer AS a
    WHERE a.collection_id = target AND a.answer IS NOT NULL
    ORDER BY a.answer_key;
END
$$;
COMMENT ON FUNCTION sag.export_answers(text) IS
'The answers of models that a collection was made of, for sag-pg export.';
