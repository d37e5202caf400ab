DO $$
BEGIN
    IF to_regprocedure('sag.store_answer(text, bytea, text, jsonb)') IS NOT NULL THEN
        DROP FUNCTION sag.store_answer(text, bytea, text, jsonb);
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION sag.store_answer(
    collection text, worker bigint, answer_key bytea, extractor text, answer jsonb
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.share_collection(store_answer.collection);
BEGIN
    INSERT INTO sag.model_answer AS a (collection_id, answer_key, extractor, answer, worker_id)
    VALUES (
        target, store_answer.answer_key, store_answer.extractor, store_answer.answer,
        store_answer.worker
    )
    ON CONFLICT (collection_id, answer_key) DO UPDATE
    SET answer = excluded.answer, worker_id = excluded.worker_id, created_at = now()
    -- Somebody who took this worker for dead may have asked too; the first answer stands.
    WHERE a.answer IS NULL;
END
$$;
COMMENT ON FUNCTION sag.store_answer(text, bigint, bytea, text, jsonb) IS
'Keeps what a model answered for a passage.';
