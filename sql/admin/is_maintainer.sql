CREATE OR REPLACE FUNCTION sag.is_maintainer() RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN pg_has_role(c.relowner, 'USAGE') FROM pg_class AS c WHERE c.oid = 'sag.event'::regclass;
END
$$;
COMMENT ON FUNCTION sag.is_maintainer() IS
'Whether the present role owns sag''s tables and so may vacuum them.';
