CREATE OR REPLACE FUNCTION sag.known_answers(collection text, answer_keys bytea[])
RETURNS TABLE (answer_key bytea, answer jsonb)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(known_answers.collection);
BEGIN
    RETURN QUERY
    SELECT a.answer_key, a.answer
    FROM sag.model_answer AS a
    WHERE a.collection_id = target AND a.answer_key = ANY(known_answers.answer_keys);
END
$$;
COMMENT ON FUNCTION sag.known_answers(text, bytea[]) IS
'Answers of a model that an earlier run stored and that no merge has made needless.';
