CREATE OR REPLACE FUNCTION sag.record_failure(
    collection text, job bigint, source text, error text, hint text
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.share_collection(record_failure.collection);
BEGIN
    INSERT INTO sag.ingest_task (
        collection_id, job_id, source, state, attempts, error, hint, finished_at
    ) VALUES (
        target, record_failure.job, record_failure.source, 'failed', 1, record_failure.error,
        record_failure.hint, now()
    );
END
$$;
COMMENT ON FUNCTION sag.record_failure(text, bigint, text, text, text) IS
'Writes down that a document of a job could not be read.';
