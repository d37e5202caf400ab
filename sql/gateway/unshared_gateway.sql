CREATE OR REPLACE FUNCTION sag.unshared_gateway() RETURNS TABLE (grantee text, needed text)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 4
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT r.rolname::text, format('USAGE ON %s', w.what)
    FROM pg_roles AS r
    CROSS JOIN LATERAL (
        SELECT format('FOREIGN SERVER %I', s.srvname) AS what
        FROM pg_foreign_server AS s
        WHERE s.srvname = 'sag_gateway' AND NOT has_server_privilege(r.oid, s.oid, 'USAGE')
        UNION ALL
        SELECT format('SCHEMA %I', n.nspname)
        FROM pg_extension AS x
        INNER JOIN pg_namespace AS n ON n.oid = x.extnamespace
        WHERE x.extname = 'dblink' AND NOT has_schema_privilege(r.oid, n.oid, 'USAGE')
            AND EXISTS (SELECT FROM pg_foreign_server AS s WHERE s.srvname = 'sag_gateway')
    ) AS w
    WHERE r.rolname IN ('sag_reader', 'sag_writer');
END
$$;
COMMENT ON FUNCTION sag.unshared_gateway() IS
'What sag_reader and sag_writer lack to use the gateway: privileges as GRANT takes them.';
