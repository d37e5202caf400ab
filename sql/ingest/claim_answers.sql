CREATE OR REPLACE FUNCTION sag.claim_answers(
    collection text, worker bigint, extractor text, answer_keys bytea[]
) RETURNS TABLE (answer_key bytea, answer jsonb, is_mine boolean)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.share_collection(claim_answers.collection);
    lapsed bigint[];
BEGIN
    -- In the order of the keys, so that two workers with passages in common wait for each other
    -- one way only.
    INSERT INTO sag.model_answer (collection_id, answer_key, extractor, worker_id)
    SELECT target, k.answer_key, claim_answers.extractor, claim_answers.worker
    FROM (SELECT DISTINCT u.answer_key FROM unnest(claim_answers.answer_keys) AS u (answer_key))
        AS k
    ORDER BY k.answer_key
    ON CONFLICT DO NOTHING;
    SELECT array_agg(holder.worker_id) INTO lapsed
    FROM (
        SELECT DISTINCT a.worker_id
        FROM sag.model_answer AS a
        WHERE a.collection_id = target AND a.answer_key = ANY(claim_answers.answer_keys)
            AND a.answer IS NULL AND a.worker_id <> claim_answers.worker
        -- As in sag.reclaim_tasks().
        OFFSET 0
    ) AS holder
    WHERE sag.worker_lapsed(holder.worker_id);
    IF lapsed IS NOT NULL THEN
        UPDATE sag.model_answer AS a SET worker_id = claim_answers.worker
        FROM (
            SELECT h.answer_key
            FROM sag.model_answer AS h
            WHERE h.collection_id = target AND h.answer_key = ANY(claim_answers.answer_keys)
                AND h.answer IS NULL AND h.worker_id = ANY(lapsed)
            ORDER BY h.answer_key
            FOR UPDATE
        ) AS held
        WHERE a.collection_id = target AND a.answer_key = held.answer_key AND a.answer IS NULL;
    END IF;
    RETURN QUERY
    SELECT a.answer_key, a.answer, a.answer IS NULL AND a.worker_id = claim_answers.worker
    FROM sag.model_answer AS a
    WHERE a.collection_id = target AND a.answer_key = ANY(claim_answers.answer_keys);
END
$$;
COMMENT ON FUNCTION sag.claim_answers(text, bigint, text, bytea[]) IS
'Answers that are known; of the others, those that this worker is to ask for now. What another '
'worker asks for is neither, and to be asked for again in a moment.';
