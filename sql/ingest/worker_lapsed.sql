CREATE OR REPLACE FUNCTION sag.worker_lapsed(worker bigint) RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    seen sag.ingest_worker%ROWTYPE;
BEGIN
    SELECT * INTO seen FROM sag.ingest_worker AS w WHERE w.worker_id = worker_lapsed.worker;
    IF seen.worker_id IS NULL THEN
        RETURN TRUE;
    END IF;
    -- After a restart of the server nobody has been heard of, and everybody comes back.
    IF pg_postmaster_start_time() > now() - interval '15 s' THEN
        RETURN FALSE;
    END IF;
    RETURN seen.heartbeat_at < now() - interval '30 s' OR (
        -- Of a process that was killed the session goes at once. Behind a pooler the session is
        -- another one at each beat, and says nothing.
        seen.heartbeat_at < now() - interval '6 s'
        AND seen.backend_pid IS NOT NULL
        AND NOT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = seen.backend_pid)
    );
END
$$;
COMMENT ON FUNCTION sag.worker_lapsed(bigint) IS
'Whether a worker is gone: retired, not heard of for 30 seconds, or for 6 without a session.';
