CREATE OR REPLACE FUNCTION sag.finish_job(collection text, job bigint, state text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(finish_job.collection);
BEGIN
    UPDATE sag.ingest_job AS j SET state = finish_job.state, finished_at = now()
    WHERE j.collection_id = target AND j.job_id = finish_job.job;
END
$$;
COMMENT ON FUNCTION sag.finish_job(text, bigint, text) IS
'Closes a run of the ingest as finished or failed.';
