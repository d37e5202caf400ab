CREATE OR REPLACE FUNCTION sag.release_answers(
    collection text, worker bigint, answer_keys bytea[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.share_collection(release_answers.collection);
BEGIN
    DELETE FROM sag.model_answer AS a
    WHERE a.collection_id = target AND a.answer_key = ANY(release_answers.answer_keys)
        AND a.answer IS NULL AND a.worker_id = release_answers.worker;
END
$$;
COMMENT ON FUNCTION sag.release_answers(text, bigint, bytea[]) IS
'Says that a worker does not ask for these passages any more.';
