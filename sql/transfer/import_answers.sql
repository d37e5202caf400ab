CREATE OR REPLACE FUNCTION sag.import_answers(collection text, answers jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.share_collection(import_answers.collection);
BEGIN
    INSERT INTO sag.model_answer (collection_id, answer_key, extractor, answer)
    SELECT target, decode(x.answer_key, 'hex'), x.extractor, x.answer
    FROM jsonb_to_recordset(import_answers.answers)
        AS x (answer_key text, extractor text, answer jsonb)
    ORDER BY x.answer_key
    ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION sag.import_answers(text, jsonb) IS
'Takes lines of sag.export_answers(), so that an ingest does not pay for them again.';
