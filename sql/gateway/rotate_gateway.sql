CREATE OR REPLACE FUNCTION sag.rotate_gateway() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    -- Made here, it is in no statement of a client, in no parameter and in no log.
    password constant text := replace(concat(gen_random_uuid(), gen_random_uuid()), '-', '');
    has_mapping constant boolean := EXISTS (
        SELECT FROM pg_user_mappings AS m WHERE m.srvname = 'sag_gateway' AND m.umuser = 0
    );
    state text;
    problem text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_foreign_server AS s WHERE s.srvname = 'sag_gateway') THEN
        RAISE EXCEPTION 'this database has no model gateway'
        USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'Install it with: sag-pg gateway install.';
    END IF;
    IF current_setting('pg_stat_statements.track', TRUE) = 'all' THEN
        -- It would keep the text of the statement below.
        BEGIN
            PERFORM set_config('pg_stat_statements.track', 'top', TRUE);
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE EXCEPTION 'pg_stat_statements would record the password'
            USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = 'pg_stat_statements.track is all, so that it keeps nested statements.',
            HINT = 'Ask an administrator to do this, or to set pg_stat_statements.track to top.';
        END;
    END IF;
    BEGIN
        IF has_mapping THEN
            EXECUTE format(
                'ALTER USER MAPPING FOR PUBLIC SERVER sag_gateway OPTIONS (SET password %L)',
                password
            );
        ELSE
            EXECUTE format(
                'CREATE USER MAPPING FOR PUBLIC SERVER sag_gateway '
                'OPTIONS (user ''sag_gateway'', password %L)', password
            );
        END IF;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, problem = MESSAGE_TEXT;
    END;
    IF state IS NOT NULL THEN
        -- Raised anew, for the error's context has the statement.
        RAISE EXCEPTION USING
            ERRCODE = state, MESSAGE = problem,
            HINT = format('Let the owner of the foreign server do this: %s.', (
                SELECT pg_get_userbyid(s.srvowner) FROM pg_foreign_server AS s
                WHERE s.srvname = 'sag_gateway'
            ));
    END IF;
END
$$;
COMMENT ON FUNCTION sag.rotate_gateway() IS
'Gives the gateway a new random password. It holds for new connections, which the gateway checks '
'by asking for it; nobody has to be told.';
REVOKE ALL ON FUNCTION sag.rotate_gateway() FROM public;
