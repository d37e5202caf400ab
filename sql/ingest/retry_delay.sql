CREATE OR REPLACE FUNCTION sag.retry_delay(attempts integer) RETURNS interval
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    -- Jitter, so that what failed together is not tried together.
    RETURN least(10 * 4 ^ (retry_delay.attempts - 1), 3600) * (0.8 + 0.4 * random())
        * interval '1 s';
END
$$;
COMMENT ON FUNCTION sag.retry_delay(integer) IS
'How long a task waits after so many failures: about 10 s, 40 s, 160 s, at most an hour.';
