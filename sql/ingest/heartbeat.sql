CREATE OR REPLACE FUNCTION sag.heartbeat(worker bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    UPDATE sag.ingest_worker AS w
    SET heartbeat_at = clock_timestamp(), backend_pid = pg_backend_pid()
    WHERE w.worker_id = heartbeat.worker;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION sag.heartbeat(bigint) IS
'Says that a worker is alive; every 2 seconds. FALSE where it was given up for dead long ago.';
