CREATE OR REPLACE FUNCTION sag.create_collection(
    name text, text_search_configuration text DEFAULT 'pg_catalog.english'
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    created bigint;
    qualified text;
BEGIN
    IF coalesce(char_length(create_collection.name), 0) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a collection cannot be called %',
            coalesce(quote_literal(left(create_collection.name, 100)), 'NULL')
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a name of 1 to 200 characters.';
    END IF;
    BEGIN
        SELECT format('%I.%I', s.nspname, t.cfgname) INTO STRICT qualified
        FROM pg_ts_config AS t
        INNER JOIN pg_namespace AS s ON s.oid = t.cfgnamespace
        WHERE t.oid = create_collection.text_search_configuration::regconfig;
    EXCEPTION WHEN undefined_object OR syntax_error OR invalid_name OR feature_not_supported
        OR no_data_found
    THEN
        RAISE EXCEPTION 'text search configuration % does not exist',
            quote_nullable(create_collection.text_search_configuration)
        USING ERRCODE = 'undefined_object',
        HINT = 'SELECT cfgname FROM pg_ts_config lists them; simple fits any language.';
    END;
    INSERT INTO sag.collection (name, text_search_configuration)
    VALUES (create_collection.name, qualified)
    ON CONFLICT (name) DO NOTHING
    RETURNING collection_id INTO created;
    IF created IS NULL THEN
        RETURN sag.collection_key(create_collection.name);
    END IF;
    INSERT INTO sag.collection_statistic (collection_id) VALUES (created);
    PERFORM sag.sql_job(created);
    RETURN created;
END
$$;
COMMENT ON FUNCTION sag.create_collection(text, text) IS
'Makes a collection and returns its collection_id; returns that of an existing one unchanged.';
