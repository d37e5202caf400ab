CREATE OR REPLACE FUNCTION sag.gateway_installed() RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM pg_foreign_server AS s
        WHERE s.srvname = 'sag_gateway' AND has_server_privilege(s.oid, 'USAGE')
    ) AND EXISTS (
        SELECT FROM pg_extension AS x
        WHERE x.extname = 'dblink' AND has_schema_privilege(x.extnamespace, 'USAGE')
    );
END
$$;
COMMENT ON FUNCTION sag.gateway_installed() IS
'Whether the present role can call a model gateway: the extension dblink and the foreign server '
'sag_gateway are there, and it may use them. Whether the gateway answers, gateway_status() says.';
