CREATE OR REPLACE FUNCTION sag.schema_creators()
RETURNS TABLE (schema_name text, role_name text)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT DISTINCT
        s.nspname::text,
        CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END
    FROM pg_extension AS x
    INNER JOIN pg_namespace AS s ON s.oid = x.extnamespace
    CROSS JOIN LATERAL aclexplode(coalesce(s.nspacl, acldefault('n', s.nspowner))) AS a
    LEFT JOIN pg_roles AS r ON r.oid = a.grantee
    WHERE x.extname IN ('vector', 'pg_trgm')
        AND a.privilege_type = 'CREATE'
        AND a.grantee <> s.nspowner
        AND NOT coalesce(r.rolsuper, FALSE)
        AND a.grantee <> (SELECT own.nspowner FROM pg_namespace AS own WHERE own.nspname = 'sag')
    ORDER BY 1, 2;
END
$$;
COMMENT ON FUNCTION sag.schema_creators() IS
'Roles that may create functions in the schema of an extension. sag''s functions have it in their '
'search_path, so such a role can have its functions run by whoever retrieves; there should be '
'none.';
