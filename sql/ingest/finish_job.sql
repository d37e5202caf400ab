CREATE OR REPLACE FUNCTION sag.finish_job(collection text, job bigint, state text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(finish_job.collection);
BEGIN
    UPDATE sag.ingest_job AS j SET state = finish_job.state, finished_at = now()
    WHERE j.collection_id = target AND j.job_id = finish_job.job;
    -- Of documents that have changed or are gone meanwhile, nobody will ask for them again, and
    -- their texts should be gone too.
    DELETE FROM sag.model_answer AS a
    WHERE a.collection_id = target AND a.created_at < now() - interval '7 days';
END
$$;
COMMENT ON FUNCTION sag.finish_job(text, bigint, text) IS
'Closes a run of the ingest as finished or failed, and deletes stored answers of models that no '
'run has asked for in 7 days.';
