CREATE OR REPLACE FUNCTION sag.forget_answers(target bigint, answer_keys bytea[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    -- The caller holds the collection's totals, so that of two writers whose documents have
    -- passages in common one is here at a time.
    DELETE FROM sag.model_answer AS a
    WHERE a.collection_id = target AND a.answer_key = ANY(forget_answers.answer_keys);
END
$$;
COMMENT ON FUNCTION sag.forget_answers(bigint, bytea[]) IS
'Deletes answers whose events are in the collection now: the last step of sag.merge_batch().';
