CREATE OR REPLACE FUNCTION sag.call_gateway(call text, request jsonb, timeout_ms integer)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    -- By then the gateway has ended the call itself, so that a silence means a gateway that is
    -- stuck, and not a slow model.
    grace constant interval := '250 ms';
    -- Both are what the gateway takes: longest text in characters, and longest time limit.
    text_limit constant integer := 32768;
    longest_ms constant integer := 3600000;
    deadline constant timestamptz := clock_timestamp() + timeout_ms * interval '1 ms';
    verbosity constant text := current_setting('client_min_messages');
    -- dblink's functions are called by EXECUTE only: it may be missing. This is its schema, quoted.
    dblink text;
    get_result constant text :=
        'SELECT r.answer FROM %s.dblink_get_result($1) AS r (answer text)';
    disconnect constant text :=
        'SELECT %1$s.dblink_disconnect($1) WHERE $1 = ANY(%1$s.dblink_get_connections())';
    connection text;
    present text[];
    other text;
    is_kept boolean;
    is_refused boolean := FALSE;
    is_silent boolean := FALSE;
    is_busy boolean;
    is_sent boolean;
    waiting_since timestamptz;
    statement text;
    answer text;
    state text;
    detail text;
    refusal text[];
BEGIN
    -- The name has the version of the server's row in it, so that a session does not keep the
    -- connection to an address that is no longer the gateway's.
    SELECT quote_ident(n.nspname), format('sag_gateway %s', s.xmin) INTO dblink, connection
    FROM pg_extension AS x
    INNER JOIN pg_namespace AS n ON n.oid = x.extnamespace
    INNER JOIN pg_foreign_server AS s ON s.srvname = 'sag_gateway'
    WHERE x.extname = 'dblink' AND sag.gateway_installed();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this database has no model gateway that % may use', current_user
        USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'Its owner runs: sag-pg gateway install. Readers are members of sag_reader.';
    END IF;
    IF call_gateway.call NOT IN ('understand', 'choose', 'embed', 'status') THEN
        RAISE EXCEPTION 'the gateway has no call %', quote_literal(call_gateway.call)
        USING ERRCODE = 'undefined_function',
        HINT = 'Its calls are understand, choose, embed and status.';
    END IF;
    IF call_gateway.request IS NULL OR call_gateway.timeout_ms IS NULL THEN
        RAISE EXCEPTION 'a call to the gateway needs a request and a time limit'
        USING ERRCODE = 'null_value_not_allowed',
        HINT = 'Give a JSON object, {} for status, and milliseconds.';
    END IF;
    -- Refused here, because a long statement to a gateway that is stuck waits in libpq, where
    -- nothing can be cancelled.
    IF length(call_gateway.request ->> 'question') > text_limit OR EXISTS (
        SELECT FROM jsonb_path_query(call_gateway.request, '$.texts[*]') AS t (item)
        WHERE length(t.item #>> '{}') > text_limit
    ) THEN
        RAISE EXCEPTION 'the gateway takes no text of more than % characters', text_limit
        USING ERRCODE = 'program_limit_exceeded',
        HINT = 'Give a shorter text. A long question is searched by words: set the option '
            'understand to "sql" for it.';
    END IF;
    IF clock_timestamp() > deadline - grace THEN
        RAISE EXCEPTION 'no time is left for a call to the gateway'
        USING ERRCODE = 'system_error',
        HINT = 'Raise the parameter gateway_timeout.';
    END IF;
    EXECUTE format('SELECT coalesce(%s.dblink_get_connections(), ''{}'')', dblink) INTO present;
    is_kept := connection = ANY(present);
    FOREACH other IN ARRAY present LOOP
        IF other LIKE 'sag\_gateway %' AND other <> connection THEN
            EXECUTE format(disconnect, dblink) USING other;
        END IF;
    END LOOP;
    LOOP
        BEGIN
            IF NOT is_kept THEN
                IF is_refused THEN
                    -- The lock lets the session hear of a password that was changed meanwhile.
                    PERFORM FROM pg_user_mappings AS m WHERE m.srvname = 'sag_gateway';
                END IF;
                BEGIN
                    -- By the foreign server's name, which finds the password without showing it.
                    EXECUTE format('SELECT %s.dblink_connect($1, ''sag_gateway'')', dblink)
                    USING connection;
                EXCEPTION WHEN sqlclient_unable_to_establish_sqlconnection THEN
                    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
                    -- libpq gives its own words, and those of a gateway that refuses with their
                    -- hint in the next line, behind a word in the language of the server.
                    refusal := regexp_match(detail, 'FATAL:[^\n]*(\n[^:\n]+:\s+([^\n]+))');
                    RAISE EXCEPTION 'the gateway cannot be reached'
                    USING ERRCODE = 'sqlclient_unable_to_establish_sqlconnection',
                    DETAIL = left(replace(detail, coalesce(refusal[1], ''), ''), 2000),
                    HINT = coalesce(refusal[2], CASE WHEN detail LIKE '%FATAL%'
                        THEN 'What answers there must be the gateway of this very database.'
                        ELSE 'See that sag-pg serve runs there. sag-pg gateway install sets where '
                            'that is, and how the connection is encrypted.'
                    END);
                END;
            END IF;
            statement := CASE WHEN call_gateway.call = 'status' THEN 'SELECT status()'
                ELSE format('SELECT %s(%L)', call_gateway.call, (
                    call_gateway.request || jsonb_build_object('timeout_ms', least(
                        longest_ms,
                        greatest(1, round(
                            extract(EPOCH FROM deadline - grace - clock_timestamp()) * 1000
                        ))
                    ))
                )::text)
            END;
            -- Of a connection that has died a NOTICE would say so, before it is opened again.
            PERFORM set_config('client_min_messages', 'error', TRUE);
            EXECUTE format('SELECT %s.dblink_send_query($1, $2) = 1', dblink)
            INTO is_sent USING connection, statement;
            PERFORM set_config('client_min_messages', verbosity, TRUE);
            waiting_since := clock_timestamp();
            LOOP
                EXECUTE format('SELECT %s.dblink_is_busy($1) = 1', dblink)
                INTO is_busy USING connection;
                EXIT WHEN NOT is_busy;
                IF NOT is_sent AND clock_timestamp() > waiting_since + interval '100 ms' THEN
                    is_silent := TRUE;
                    RAISE EXCEPTION 'the gateway still owes the answer to an earlier call'
                    USING ERRCODE = 'connection_failure',
                    HINT = 'It is stuck or cut off. See its log, and restart it.';
                ELSIF clock_timestamp() > deadline THEN
                    is_silent := TRUE;
                    RAISE EXCEPTION 'the gateway gave no answer within % ms', timeout_ms
                    USING ERRCODE = 'connection_failure',
                    HINT = 'It is stuck or cut off. See its log, and restart it.';
                END IF;
                -- Waiting in steps keeps the time limit, and can be cancelled on PostgreSQL 16
                -- too, where dblink_get_result() cannot.
                PERFORM pg_sleep(greatest(0.001, least(0.05, extract(
                    EPOCH FROM clock_timestamp() - waiting_since
                ) * 0.05)));
            END LOOP;
            IF NOT is_sent THEN
                RAISE EXCEPTION 'the connection to the gateway is lost'
                USING ERRCODE = 'connection_failure';
            END IF;
            EXECUTE format(get_result, dblink) INTO answer USING connection;
            -- Until there is no further result the connection takes no further query.
            EXECUTE format(get_result, dblink) USING connection;
            EXIT;
        EXCEPTION
            -- The end of the connection is what tells the gateway to end the model's call.
            WHEN query_canceled THEN
                EXECUTE format(disconnect, dblink) USING connection;
                RAISE;
            WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL;
                -- A silent gateway might let a new connection wait for as long, and dblink knows no
                -- time limit there. So the old one stays, as a sign of life that can be waited for.
                IF is_silent THEN
                    RAISE;
                END IF;
                IF left(state, 2) NOT IN ('08', '57') THEN
                    -- The gateway has refused the call; after the error comes the end of results.
                    BEGIN
                        EXECUTE format(get_result, dblink) USING connection;
                    EXCEPTION WHEN OTHERS THEN
                        EXECUTE format(disconnect, dblink) USING connection;
                    END;
                    RAISE;
                END IF;
                EXECUTE format(disconnect, dblink) USING connection;
                -- Once more, for the gateway may have been restarted since the last call, or its
                -- password changed since this session read it.
                IF clock_timestamp() > deadline - grace THEN
                    RAISE;
                ELSIF is_kept THEN
                    is_kept := FALSE;
                ELSIF NOT is_refused AND detail LIKE '%password authentication failed%' THEN
                    is_refused := TRUE;
                ELSE
                    RAISE;
                END IF;
        END;
    END LOOP;
    IF answer IS JSON OBJECT THEN
        RETURN answer::jsonb;
    END IF;
    RAISE EXCEPTION 'the gateway answered with what is no JSON object'
    USING ERRCODE = 'protocol_violation',
    HINT = 'Something else may be listening at its address: SELECT sag.gateway_status();';
END
$$;
COMMENT ON FUNCTION sag.call_gateway(text, jsonb, integer) IS
'Calls the model gateway over dblink and returns its answer, or raises what it raised. Keeps one '
'connection a session and opens it again once where it has died. To cancel the query is to cancel '
'the call. timeout_ms does not hold while a connection is being opened, for which dblink knows no '
'limit: of a gateway that takes it and says nothing, such as a frozen one, only statement_timeout '
'ends the wait, with an error. ALTER ROLE ... SET statement_timeout sets it for a role.';
