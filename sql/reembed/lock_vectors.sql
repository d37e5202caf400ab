CREATE OR REPLACE FUNCTION sag.lock_vectors(patience_ms integer DEFAULT 200) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET lock_timeout = '10s'
AS $$
DECLARE
    holders text;
BEGIN
    -- Neither readers nor writers mind this mode. Waiting for it sends autovacuum away, for which
    -- a short patience would not do.
    LOCK TABLE sag.event, sag.chunk, sag.entity IN SHARE UPDATE EXCLUSIVE MODE;

    SELECT string_agg(DISTINCT format('process %s', a.pid), ', ') INTO holders
    FROM pg_locks AS l
    INNER JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
        AND l.relation IN (
            'sag.collection'::regclass, 'sag.event'::regclass, 'sag.chunk'::regclass,
            'sag.entity'::regclass
        )
        AND a.xact_start < clock_timestamp() - make_interval(secs => patience_ms / 1000.0);
    IF holders IS NOT NULL THEN
        RAISE EXCEPTION 'the tables with vectors are in use for longer than % ms', patience_ms
        USING ERRCODE = 'lock_not_available',
        DETAIL = format('By: %s.', holders),
        HINT = 'Try again when their transactions have ended; pg_stat_activity shows them.';
    END IF;

    -- This table is the first that retrieval touches: whoever comes now queues up here without a
    -- lock on the others, so that nobody can be waited for in a circle.
    PERFORM set_config('lock_timeout', patience_ms::text, TRUE);
    LOCK TABLE sag.collection IN ACCESS EXCLUSIVE MODE;
    LOCK TABLE sag.event, sag.chunk, sag.entity IN ACCESS EXCLUSIVE MODE NOWAIT;
END
$$;
COMMENT ON FUNCTION sag.lock_vectors(integer) IS
'Keeps everybody off the tables with vectors until the transaction ends. Retrieval waits for it no '
'longer than patience_ms; where that does not do, an error lock_not_available says to try again. '
'Call sag.lock_collections() first.';
