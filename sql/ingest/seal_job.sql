CREATE OR REPLACE FUNCTION sag.seal_job(job bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    UPDATE sag.ingest_job AS j SET sealed_at = now() WHERE j.job_id = seal_job.job;
    PERFORM sag.purge_queue();
END
$$;
COMMENT ON FUNCTION sag.seal_job(bigint) IS
'Says that a job has all its documents. Tidies up after the jobs of a month ago.';
