CREATE OR REPLACE FUNCTION sag.import_answers(collection text, answers jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.share_collection(import_answers.collection);
BEGIN
    INSERT INTO sag.model_answer AS a (collection_id, answer_key, extractor, answer)
    SELECT DISTINCT ON (decode(x.answer_key, 'hex'))
        target, decode(x.answer_key, 'hex'), x.extractor, x.answer
    FROM jsonb_to_recordset(import_answers.answers)
        AS x (answer_key text, extractor text, answer jsonb)
    -- In the order in which workers take them, so that none waits for another in a circle.
    ORDER BY decode(x.answer_key, 'hex')
    ON CONFLICT (collection_id, answer_key) DO UPDATE
    SET answer = excluded.answer, worker_id = NULL, created_at = now()
    -- A worker that is asking a model for it right now will find it there.
    WHERE a.answer IS NULL;
END
$$;
COMMENT ON FUNCTION sag.import_answers(text, jsonb) IS
'Takes an array of lines of answers.jsonl, so that no ingest pays for these answers again.';
