CREATE OR REPLACE FUNCTION sag.set_parameter(name text, value jsonb, collection text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint;
BEGIN
    PERFORM sag.check_parameters(
        jsonb_build_object(set_parameter.name, coalesce(set_parameter.value, p.default_value))
    ) FROM (SELECT (
        SELECT q.default_value FROM sag.parameter AS q WHERE q.name = set_parameter.name
    )) AS p (default_value);
    IF set_parameter.collection IS NULL THEN
        UPDATE sag.parameter AS p SET database_value = set_parameter.value
        WHERE p.name = set_parameter.name;
        RETURN;
    END IF;
    target := sag.collection_key(set_parameter.collection);
    UPDATE sag.collection AS c
    SET parameters = CASE WHEN set_parameter.value IS NULL
        THEN c.parameters - set_parameter.name
        ELSE c.parameters || jsonb_build_object(set_parameter.name, set_parameter.value)
    END
    WHERE c.collection_id = target;
END
$$;
COMMENT ON FUNCTION sag.set_parameter(text, jsonb, text) IS
'Sets a retrieval parameter for a collection, or for the database where none is named; NULL takes '
'the setting back.';
