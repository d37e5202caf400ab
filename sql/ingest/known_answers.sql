DO $$
BEGIN
    IF pg_get_function_result(to_regprocedure('sag.known_answers(text, bytea[])')) ~ 'jsonb' THEN
        DROP FUNCTION sag.known_answers(text, bytea[]);
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION sag.known_answers(collection text, answer_keys bytea[])
RETURNS TABLE (answer_key bytea)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(known_answers.collection);
BEGIN
    RETURN QUERY
    SELECT a.answer_key
    FROM sag.model_answer AS a
    WHERE a.collection_id = target AND a.answer_key = ANY(known_answers.answer_keys)
        AND a.answer IS NOT NULL;
END
$$;
COMMENT ON FUNCTION sag.known_answers(text, bytea[]) IS
'Which answers of models are stored, and so would cost nothing.';
