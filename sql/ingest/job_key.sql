CREATE OR REPLACE FUNCTION sag.job_key(job bigint) RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint;
BEGIN
    SELECT j.collection_id INTO target
    FROM sag.ingest_job AS j WHERE j.job_id = job_key.job;
    IF target IS NULL THEN
        RAISE EXCEPTION 'job % does not exist', coalesce(job_key.job::text, 'NULL')
        USING ERRCODE = 'no_data_found', HINT = 'The view sag.job_status lists them.';
    END IF;
    RETURN target;
END
$$;
COMMENT ON FUNCTION sag.job_key(bigint) IS
'The collection_id of a job; an error where there is no such job.';
