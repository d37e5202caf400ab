CREATE OR REPLACE FUNCTION sag.claim_reembedding() RETURNS jsonb
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    settings jsonb;
BEGIN
    IF NOT pg_try_advisory_lock(
        'pg_class'::regclass::oid::integer, 'sag.reembedding'::regclass::oid::integer
    ) THEN
        RETURN NULL;
    END IF;
    SELECT jsonb_object_agg(s.name, current_setting(s.name)) INTO settings
    FROM pg_settings AS s
    WHERE s.name IN (
        'statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout',
        'idle_session_timeout', 'client_connection_check_interval'
    );
    -- A role's time limits are meant for queries, and here an index is built. But a session whose
    -- client was killed must not keep the claim until that is done.
    PERFORM sag.lift_time_limits(FALSE);
    PERFORM sag.watch_client('2s', FALSE);
    RETURN settings;
END
$$;
COMMENT ON FUNCTION sag.claim_reembedding() IS
'Makes this session the one that reembeds, without time limits, and returns those that it had for '
'sag.release_reembedding(); NULL where another session is at it.';
