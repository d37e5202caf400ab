CREATE OR REPLACE FUNCTION sag.cancel_job(job bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.job_key(cancel_job.job);
    cancelled_ids bigint[];
BEGIN
    -- Only who holds the collection waits for tasks: a transaction that deletes several documents
    -- holds theirs in any order.
    PERFORM sag.lock_collection(c.name) FROM sag.collection AS c WHERE c.collection_id = target;
    -- The one job of a collection's SQL clients goes on with what comes after this.
    UPDATE sag.ingest_job AS j SET cancelled_at = now(), stopped = NULL
    WHERE j.collection_id = target AND j.job_id = cancel_job.job AND j.origin = 'command';
    WITH cancelled AS (
        UPDATE sag.ingest_task AS t
        SET state = 'cancelled', worker_id = NULL, finished_at = now()
        WHERE t.collection_id = target AND t.job_id = cancel_job.job
            AND t.state IN ('queued', 'running')
        RETURNING t.task_id
    )
    SELECT array_agg(c.task_id) INTO cancelled_ids FROM cancelled AS c;
    DELETE FROM sag.ingest_piece AS p
    WHERE p.collection_id = target AND p.task_id = ANY(cancelled_ids);
    DELETE FROM sag.chunk_failure AS f
    WHERE f.collection_id = target AND f.task_id = ANY(cancelled_ids);
    RETURN coalesce(cardinality(cancelled_ids), 0);
END
$$;
COMMENT ON FUNCTION sag.cancel_job(bigint) IS
'Gives up what is left of a job; what is in the collection stays. Returns the number of documents '
'given up.';
