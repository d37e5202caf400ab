CREATE OR REPLACE FUNCTION sag.store_answer(
    collection text, answer_key bytea, extractor text, answer jsonb
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.lock_collection(store_answer.collection);
BEGIN
    INSERT INTO sag.model_answer (collection_id, answer_key, extractor, answer)
    VALUES (target, store_answer.answer_key, store_answer.extractor, store_answer.answer)
    -- Another run may have asked for the same passage meanwhile.
    ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION sag.store_answer(text, bytea, text, jsonb) IS
'Keeps what a model answered for a passage until its document is merged.';
