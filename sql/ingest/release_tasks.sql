CREATE OR REPLACE FUNCTION sag.release_tasks(worker bigint, keep bigint[] DEFAULT '{}')
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    released integer;
BEGIN
    UPDATE sag.ingest_task AS t SET state = 'queued', worker_id = NULL
    FROM (
        SELECT r.collection_id, r.task_id
        FROM sag.ingest_task AS r
        WHERE r.worker_id = release_tasks.worker AND r.state = 'running'
            AND r.task_id <> ALL(release_tasks.keep)
        -- What somebody else holds is being taken from the worker; should that come to nothing, the
        -- worker releases it the next time.
        FOR UPDATE SKIP LOCKED
    ) AS held
    WHERE t.collection_id = held.collection_id AND t.task_id = held.task_id;
    GET DIAGNOSTICS released = ROW_COUNT;
    RETURN released;
END
$$;
COMMENT ON FUNCTION sag.release_tasks(bigint, bigint[]) IS
'Puts what a worker has taken, but for some tasks, back into the queue. Returns how many.';
