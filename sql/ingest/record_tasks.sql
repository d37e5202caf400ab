CREATE OR REPLACE FUNCTION sag.record_tasks(
    collection text, job bigint, sources text[], states text[], chunk_counts integer[],
    errors text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(record_tasks.collection);
BEGIN
    INSERT INTO sag.ingest_task (collection_id, job_id, source, state, chunk_count, error)
    SELECT target, record_tasks.job, t.source, t.state, t.chunk_count, t.error
    FROM unnest(
        record_tasks.sources, record_tasks.states, record_tasks.chunk_counts, record_tasks.errors
    ) AS t (source, state, chunk_count, error);
END
$$;
COMMENT ON FUNCTION sag.record_tasks(text, bigint, text[], text[], integer[], text[]) IS
'Writes down what became of documents in a run of the ingest.';
