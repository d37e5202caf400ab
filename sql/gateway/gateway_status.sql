CREATE OR REPLACE FUNCTION sag.gateway_status() RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    facts jsonb;
    status jsonb;
    problem text;
    detail text;
    hint text;
BEGIN
    SELECT jsonb_build_object('installed', TRUE, 'host', NULL, 'port', NULL)
        || coalesce(jsonb_object_agg(o.option_name, o.option_value)
            FILTER (WHERE o.option_name IN ('host', 'port', 'sslmode')), '{}')
    INTO facts
    FROM pg_foreign_server AS s
    CROSS JOIN LATERAL pg_options_to_table(s.srvoptions) AS o
    WHERE s.srvname = 'sag_gateway'
    GROUP BY s.oid;
    IF facts IS NULL OR NOT EXISTS (SELECT FROM pg_extension AS x WHERE x.extname = 'dblink') THEN
        RETURN '{"installed": false, "answering": false}';
    END IF;
    BEGIN
        status := sag.call_gateway('status', '{}', 5000);
        RETURN facts || jsonb_build_object('answering', TRUE, 'status', status, 'fits', (
            SELECT e.model = status ->> 'embedding_model' AND coalesce(
                to_jsonb(e.dimensions) = nullif(status -> 'dimensions', 'null'), TRUE
            )
            FROM sag.embedding_space AS e
        ));
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS problem = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
            hint = PG_EXCEPTION_HINT;
    END;
    RETURN facts || jsonb_build_object(
        'answering', FALSE, 'error', problem, 'detail', nullif(detail, ''), 'hint', nullif(hint, '')
    );
END
$$;
COMMENT ON FUNCTION sag.gateway_status() IS
'Whether a gateway is installed, where, and whether it answers; then whether its embedding model '
'fits the vectors of this database (null where there is either none), its models, calls, errors, '
'cache hits, tokens and latencies.';
