CREATE OR REPLACE FUNCTION sag.register_worker(name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    registered bigint;
BEGIN
    -- Those that were killed did not take their leave.
    DELETE FROM sag.ingest_worker AS w
    USING (
        SELECT d.worker_id
        FROM sag.ingest_worker AS d
        WHERE d.heartbeat_at < now() - interval '1 hour' AND sag.worker_lapsed(d.worker_id)
        FOR UPDATE SKIP LOCKED
    ) AS dead
    WHERE w.worker_id = dead.worker_id;
    INSERT INTO sag.ingest_worker (name) VALUES (register_worker.name)
    RETURNING worker_id INTO registered;
    RETURN registered;
END
$$;
COMMENT ON FUNCTION sag.register_worker(text) IS
'Announces a process that is going to work on the queue, and returns its worker_id. Forgets '
'workers that died an hour ago.';
