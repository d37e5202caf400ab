CREATE OR REPLACE FUNCTION sag.remove_gateway() RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_foreign_server AS s WHERE s.srvname = 'sag_gateway') THEN
        RETURN FALSE;
    END IF;
    DROP USER MAPPING IF EXISTS FOR PUBLIC SERVER sag_gateway;
    -- A user may have given himself a mapping of his own.
    DROP SERVER sag_gateway CASCADE;
    RETURN TRUE;
END
$$;
COMMENT ON FUNCTION sag.remove_gateway() IS
'Takes away what install_gateway() made, except for the extension dblink. Returns whether there '
'was anything.';
REVOKE ALL ON FUNCTION sag.remove_gateway() FROM public;
