CREATE OR REPLACE FUNCTION sag.forget_answers(target bigint, answer_keys bytea[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    -- The caller holds the collection, so that no chunk with such a passage comes meanwhile.
    DELETE FROM sag.model_answer AS a
    WHERE a.collection_id = target AND a.answer_key = ANY(forget_answers.answer_keys)
        AND a.answer IS NOT NULL
        AND NOT EXISTS (
            SELECT FROM sag.chunk AS c
            WHERE c.collection_id = target AND c.answer_key = a.answer_key
        );
END
$$;
COMMENT ON FUNCTION sag.forget_answers(bigint, bytea[]) IS
'Deletes those answers of models that no chunk carries any more: what is deleted is gone.';
