CREATE OR REPLACE FUNCTION sag.start_job(collection text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(start_job.collection);
    started bigint;
BEGIN
    INSERT INTO sag.ingest_job (collection_id) VALUES (target) RETURNING job_id INTO started;
    RETURN started;
END
$$;
COMMENT ON FUNCTION sag.start_job(text) IS 'Opens a run of the ingest and returns its job_id.';
