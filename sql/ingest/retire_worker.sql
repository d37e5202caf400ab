CREATE OR REPLACE FUNCTION sag.retire_worker(worker bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM sag.release_tasks(retire_worker.worker);
    DELETE FROM sag.model_answer AS a
    WHERE a.worker_id = retire_worker.worker AND a.answer IS NULL;
    DELETE FROM sag.ingest_worker AS w WHERE w.worker_id = retire_worker.worker;
END
$$;
COMMENT ON FUNCTION sag.retire_worker(bigint) IS
'Takes leave of a worker: what it has taken goes back into the queue.';
