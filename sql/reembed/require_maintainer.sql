CREATE OR REPLACE FUNCTION sag.require_maintainer() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NOT sag.is_maintainer() THEN
        RAISE EXCEPTION 'only the owner of sag''s tables changes their embedding model'
        USING ERRCODE = 'insufficient_privilege',
        HINT = format('Connect as %s, or have it done by that role.', (
            SELECT pg_get_userbyid(c.relowner) FROM pg_class AS c
            WHERE c.oid = 'sag.event'::regclass
        ));
    END IF;
END
$$;
COMMENT ON FUNCTION sag.require_maintainer() IS
'An error for a role that does not own sag''s tables.';
