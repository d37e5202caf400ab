CREATE OR REPLACE FUNCTION sag.install_gateway(
    host text DEFAULT NULL, port integer DEFAULT NULL, options jsonb DEFAULT '{}'
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    present constant jsonb := (
        SELECT coalesce(jsonb_object_agg(o.option_name, o.option_value), '{}')
        FROM pg_foreign_server AS s
        CROSS JOIN LATERAL pg_options_to_table(s.srvoptions) AS o
        WHERE s.srvname = 'sag_gateway'
    );
    -- The later goes before the earlier: what is the default, what is set, and what is given.
    wanted constant jsonb := jsonb_build_object(
        'host', '127.0.0.1', 'port', '5454',
        -- Whatever else might listen there while the gateway does not is told no password.
        'require_auth', 'scram-sha-256',
        -- For a host that is gone: dblink itself waits for a connection without a limit.
        'tcp_user_timeout', '5000'
    -- How the host that was is found and encrypted says nothing of another.
    ) || present - CASE WHEN install_gateway.host <> present ->> 'host'
        THEN '{hostaddr,sslmode,sslrootcert}' ELSE '{}' END::text[]
    || coalesce(install_gateway.options, '{}')
    || jsonb_strip_nulls(jsonb_build_object(
        'host', install_gateway.host, 'port', install_gateway.port::text
    ));
    is_new constant boolean := NOT EXISTS (
        SELECT FROM pg_foreign_server AS s WHERE s.srvname = 'sag_gateway'
    );
    changes text;
BEGIN
    IF EXISTS (
        SELECT FROM regexp_split_to_table(coalesce(wanted ->> 'host', ''), ',') AS h (host)
        -- A directory may have spaces in it, a name may not.
        WHERE h.host !~ '^([/@][^[:cntrl:]]*|[^[:space:][:cntrl:]]+)$'
    ) OR wanted ->> 'port' IS NULL OR install_gateway.port NOT BETWEEN 1 AND 65535
    THEN
        RAISE EXCEPTION 'no gateway can be at host % and port %',
            quote_nullable(wanted ->> 'host'), coalesce(wanted ->> 'port', 'NULL')
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Give a name, an address or the directory of a Unix socket, and a port from 1 to '
            '65535.';
    END IF;
    -- libpq would go without encryption where whoever is on the way says that there is none.
    IF wanted ->> 'sslmode' IS NULL AND EXISTS (
        SELECT FROM string_to_table(concat_ws(',', wanted ->> 'host', wanted ->> 'hostaddr'), ',')
            AS h (host)
        WHERE h.host !~* '^([/@].*|localhost|127(\.\d+){3}|::1)$'
    ) THEN
        RAISE EXCEPTION 'host % is another machine, and the option sslmode is missing',
            quote_literal(wanted ->> 'host')
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Set it to verify-full, or to disable for a network where nobody can listen in.';
    END IF;
    BEGIN
        IF NOT EXISTS (SELECT FROM pg_extension AS x WHERE x.extname = 'dblink') THEN
            CREATE EXTENSION dblink SCHEMA public;
        END IF;
    EXCEPTION
        WHEN insufficient_privilege THEN
            RAISE EXCEPTION 'role % may not create the extension dblink', current_user
            USING ERRCODE = 'insufficient_privilege',
            HINT = format(
                'Ask an administrator to run, in this database: CREATE EXTENSION dblink; '
                'GRANT USAGE ON FOREIGN DATA WRAPPER dblink_fdw TO %I;', current_user
            );
        WHEN feature_not_supported OR undefined_file THEN
            RAISE EXCEPTION 'the server does not offer the extension dblink'
            USING ERRCODE = 'feature_not_supported',
            HINT = 'Ask its administrator to install it; on Debian and Ubuntu it comes with '
                'PostgreSQL, elsewhere with the package postgresql-contrib.';
    END;
    IF is_new THEN
        IF NOT has_foreign_data_wrapper_privilege('dblink_fdw', 'USAGE') THEN
            RAISE EXCEPTION 'role % may not use the foreign-data wrapper dblink_fdw', current_user
            USING ERRCODE = 'insufficient_privilege',
            HINT = format(
                'Ask an administrator to run, in this database: '
                'GRANT USAGE ON FOREIGN DATA WRAPPER dblink_fdw TO %I;', current_user
            );
        END IF;
        CREATE SERVER sag_gateway FOREIGN DATA WRAPPER dblink_fdw;
        COMMENT ON SERVER sag_gateway IS 'The model gateway of sag-pg.';
    END IF;
    SELECT string_agg(CASE
        WHEN w.value IS NULL THEN format('DROP %I', o.option_name)
        WHEN o.option_name IS NULL THEN format('ADD %I %L', w.key, w.value)
        ELSE format('SET %I %L', w.key, w.value)
    END, ', ') INTO changes
    FROM jsonb_each_text(wanted) AS w
    FULL JOIN (
        SELECT p.option_name, p.option_value
        FROM pg_foreign_server AS s
        CROSS JOIN LATERAL pg_options_to_table(s.srvoptions) AS p
        WHERE s.srvname = 'sag_gateway'
    ) AS o ON o.option_name = w.key
    WHERE o.option_value IS DISTINCT FROM w.value;
    IF changes IS NOT NULL THEN
        EXECUTE format('ALTER SERVER sag_gateway OPTIONS (%s)', changes);
    END IF;
    IF NOT EXISTS (
        SELECT FROM pg_user_mappings AS m WHERE m.srvname = 'sag_gateway' AND m.umuser = 0
    ) THEN
        PERFORM sag.rotate_gateway();
    END IF;
    PERFORM sag.share_gateway();
    RETURN is_new;
END
$$;
COMMENT ON FUNCTION sag.install_gateway(text, integer, jsonb) IS
'Tells the database where its model gateway listens: creates dblink, the foreign server '
'sag_gateway, a random password for it, and grants. Again, it changes what is given and keeps the '
'rest, the password too; another host needs its own sslmode. At first host is 127.0.0.1 and port '
'5454; host may be the directory of a Unix socket. options are libpq''s, such as sslmode, without '
'which host has to be this machine; a null takes one back. Returns whether it is new.';
REVOKE ALL ON FUNCTION sag.install_gateway(text, integer, jsonb) FROM public;
