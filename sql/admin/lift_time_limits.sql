CREATE OR REPLACE FUNCTION sag.lift_time_limits(until_commit boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM set_config(s.name, '0', lift_time_limits.until_commit)
    FROM pg_settings AS s
    WHERE s.name IN (
        'statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout',
        'idle_session_timeout'
    );
END
$$;
COMMENT ON FUNCTION sag.lift_time_limits(boolean) IS
'Takes away the time limits of a role or a database, which are meant for queries, from the '
'transaction or from the session.';
