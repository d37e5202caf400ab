CREATE OR REPLACE FUNCTION sag.resolve_parameters(target bigint, options jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    overrides jsonb;
    resolved jsonb;
BEGIN
    SELECT c.parameters INTO overrides FROM sag.collection AS c WHERE c.collection_id = target;
    PERFORM sag.check_parameters(resolve_parameters.options);
    SELECT jsonb_object_agg(p.name, coalesce(p.database_value, p.default_value)) INTO resolved
    FROM sag.parameter AS p;
    -- 2.0 is a whole number, but its text is none to a column of type integer.
    RETURN (
        SELECT jsonb_object_agg(
            r.key,
            CASE WHEN jsonb_typeof(r.value) = 'number' THEN to_jsonb(trim_scale(r.value::numeric))
                ELSE r.value END
        )
        FROM jsonb_each(resolved || overrides || coalesce(resolve_parameters.options, '{}')) AS r
    );
END
$$;
COMMENT ON FUNCTION sag.resolve_parameters(bigint, jsonb) IS
'All parameters as they hold for a call: its options, else the collection''s, else the '
'database''s, else the defaults.';
