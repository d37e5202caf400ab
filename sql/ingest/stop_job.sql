CREATE OR REPLACE FUNCTION sag.stop_job(job bigint, reason text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.job_key(stop_job.job);
BEGIN
    UPDATE sag.ingest_job AS j SET stopped = coalesce(stop_job.reason, 'It was stopped.')
    WHERE j.collection_id = target AND j.job_id = stop_job.job;
END
$$;
COMMENT ON FUNCTION sag.stop_job(bigint, text) IS
'Keeps workers from taking what is left of a job, until sag.retry_job().';
