CREATE OR REPLACE FUNCTION sag.seal_job(job bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.job_key(seal_job.job);
    is_first boolean;
BEGIN
    -- Once a day is enough, for it looks at all answers of that age.
    is_first := NOT EXISTS (
        SELECT FROM sag.ingest_job AS j
        WHERE j.origin = 'command' AND j.sealed_at >= date_trunc('day', now())
    );
    UPDATE sag.ingest_job AS j SET sealed_at = now()
    WHERE j.collection_id = target AND j.job_id = seal_job.job;
    IF is_first THEN
        PERFORM sag.purge_queue();
    END IF;
END
$$;
COMMENT ON FUNCTION sag.seal_job(bigint) IS
'Says that a job has all its documents. The first of a day tidies up after those of a month ago.';
