CREATE OR REPLACE FUNCTION sag.cancel_job(job bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.job_key(cancel_job.job);
    cancelled bigint[];
BEGIN
    -- Only who holds the collection waits for tasks: a transaction that deletes several documents
    -- holds theirs in any order.
    PERFORM sag.lock_collection(c.name) FROM sag.collection AS c WHERE c.collection_id = target;
    -- The one job of a collection's SQL clients goes on with what comes after this. One that has
    -- ended stays what it is.
    UPDATE sag.ingest_job AS j SET cancelled_at = now(), stopped = NULL
    WHERE j.collection_id = target AND j.job_id = cancel_job.job AND j.origin = 'command'
        AND j.cancelled_at IS NULL
        AND (
            j.sealed_at IS NULL
            OR EXISTS (
                SELECT FROM sag.ingest_task AS t
                WHERE t.collection_id = target AND t.job_id = cancel_job.job
                    AND t.state IN ('queued', 'running')
            )
        );
    cancelled := ARRAY(
        SELECT t.task_id
        FROM sag.ingest_task AS t
        WHERE t.collection_id = target AND t.job_id = cancel_job.job
            AND t.state IN ('queued', 'running')
        FOR UPDATE
    );
    PERFORM sag.discard_tasks(target, cancelled, 'cancelled');
    RETURN cardinality(cancelled);
END
$$;
COMMENT ON FUNCTION sag.cancel_job(bigint) IS
'Gives up what is left of a job; what is in the collection stays, and so does a job that has '
'ended. Returns the number of documents given up.';
