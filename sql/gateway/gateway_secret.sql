CREATE OR REPLACE FUNCTION sag.gateway_secret() RETURNS TABLE (password text)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 1
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    owner_name text;
BEGIN
    SELECT pg_get_userbyid(s.srvowner) INTO owner_name
    FROM pg_foreign_server AS s
    WHERE s.srvname = 'sag_gateway';
    IF owner_name IS NULL THEN
        RAISE EXCEPTION 'this database has no model gateway'
        USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'Install it with: sag-pg gateway install.';
    END IF;
    -- The view shows the options of a mapping to the server's owner only.
    SELECT o.option_value INTO password
    FROM pg_user_mappings AS m
    CROSS JOIN LATERAL pg_options_to_table(m.umoptions) AS o
    WHERE m.srvname = 'sag_gateway' AND m.umuser = 0 AND o.option_name = 'password';
    IF password IS NULL THEN
        RAISE EXCEPTION 'role % does not see the password of the gateway', current_user
        USING ERRCODE = 'insufficient_privilege',
        HINT = format(
            'Let the gateway connect as %s, or: ALTER SERVER sag_gateway OWNER TO %I;',
            owner_name, current_user
        );
    END IF;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION sag.gateway_secret() IS
'The password that the gateway asks of this database; for the gateway itself, and shown to the '
'owner of the foreign server only.';
REVOKE ALL ON FUNCTION sag.gateway_secret() FROM public;
