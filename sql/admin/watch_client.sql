CREATE OR REPLACE FUNCTION sag.watch_client(check_interval text, until_commit boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM set_config(
        'client_connection_check_interval', watch_client.check_interval, watch_client.until_commit
    );
EXCEPTION WHEN invalid_parameter_value THEN
    -- The server's system cannot tell.
    NULL;
END
$$;
COMMENT ON FUNCTION sag.watch_client(text, boolean) IS
'Has a statement of this session end, and its locks with it, soon after the client has died. Does '
'nothing where the server''s system cannot tell.';
