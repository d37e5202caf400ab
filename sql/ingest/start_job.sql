DO $$
BEGIN
    IF to_regprocedure('sag.start_job(text)') IS NOT NULL THEN
        DROP FUNCTION sag.start_job(text);
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION sag.start_job(collection text, worker bigint, settings jsonb)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.share_collection(start_job.collection);
    started bigint;
BEGIN
    INSERT INTO sag.ingest_job (collection_id, loader_id, settings)
    VALUES (target, start_job.worker, start_job.settings)
    RETURNING job_id INTO started;
    RETURN started;
END
$$;
COMMENT ON FUNCTION sag.start_job(text, bigint, jsonb) IS
'Opens a job, to which a worker is going to add documents until sag.seal_job(), and returns its '
'job_id.';
