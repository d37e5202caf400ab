CREATE OR REPLACE FUNCTION sag.import_collection(
    collection text, facts jsonb, with_embeddings boolean DEFAULT TRUE
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    given_space jsonb := nullif(import_collection.facts -> 'embedding_space', 'null');
    given_configuration text := import_collection.facts ->> 'text_search_configuration';
    present_configuration text;
    present_space sag.embedding_space%ROWTYPE;
    missing_types jsonb;
BEGIN
    IF import_collection.with_embeddings AND given_space IS NOT NULL THEN
        SELECT * INTO present_space FROM sag.embedding_space;
        IF present_space.model IS NULL THEN
            PERFORM sag.set_embedding_space(
                given_space ->> 'model', (given_space ->> 'dimensions')::integer
            );
        ELSIF present_space.model <> given_space ->> 'model'
            OR present_space.dimensions <> (given_space ->> 'dimensions')::integer
        THEN
            RAISE EXCEPTION 'this database is for vectors of model % with % dimensions',
                quote_literal(present_space.model), present_space.dimensions
            USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = format(
                'Those of the export are of %L with %s dimensions, and cannot be compared with '
                'them.',
                given_space ->> 'model', given_space ->> 'dimensions'
            ),
            HINT = 'Import it --without-embeddings, and sag-pg reembed makes vectors of the model '
                'in use. Or change the database to the export''s model first, by sag-pg reembed.';
        END IF;
    END IF;

    SELECT jsonb_object_agg(t.name, t.description) INTO missing_types
    FROM jsonb_each_text(import_collection.facts -> 'entity_types') AS t (name, description)
    WHERE NOT EXISTS (SELECT FROM sag.entity_type AS k WHERE k.name = t.name);
    IF missing_types IS NOT NULL THEN
        IF NOT has_table_privilege('sag.entity_type', 'INSERT') THEN
            RAISE EXCEPTION 'the export has types of entities that this database does not know'
            USING ERRCODE = 'insufficient_privilege',
            DETAIL = (
                SELECT format('They are: %s.', string_agg(t.name, ', ' ORDER BY t.name))
                FROM jsonb_object_keys(missing_types) AS t (name)
            ),
            HINT = (
                SELECT 'Ask the owner for: INSERT INTO sag.entity_type (name, description) VALUES '
                    || string_agg(format('(%L, %L)', t.name, t.description), ', ' ORDER BY t.name)
                    || ';'
                FROM jsonb_each_text(missing_types) AS t (name, description)
            );
        END IF;
        INSERT INTO sag.entity_type (name, description)
        SELECT t.name, t.description
        FROM jsonb_each_text(missing_types) AS t (name, description)
        ORDER BY t.name
        ON CONFLICT DO NOTHING;
    END IF;

    PERFORM sag.check_parameters(import_collection.facts -> 'parameters');
    IF NOT EXISTS (
        SELECT FROM sag.collection AS c WHERE c.name = import_collection.collection
    ) THEN
        BEGIN
            PERFORM sag.create_collection(import_collection.collection, given_configuration);
        EXCEPTION WHEN undefined_object THEN
            RAISE EXCEPTION 'text search configuration % does not exist',
                quote_nullable(given_configuration)
            USING ERRCODE = 'undefined_object',
            DETAIL = 'The exported collection is in it.',
            HINT = format(
                'Create it, or make the collection with another one before the import: '
                'SELECT sag.create_collection(%L, ''simple'');', import_collection.collection
            );
        END;
    END IF;
    -- Nobody brings documents meanwhile.
    PERFORM sag.lock_collection(import_collection.collection);
    -- One that is as sag.create_collection() makes it takes over what the exported one is like.
    -- "default" is there in every database.
    UPDATE sag.collection AS c
    SET text_search_configuration = given_configuration,
        parameters = import_collection.facts -> 'parameters'
    WHERE c.name = import_collection.collection
        AND c.text_search_configuration IN ('pg_catalog.english', given_configuration)
        AND c.parameters = '{}'
        AND EXISTS (
            SELECT FROM pg_ts_config AS t
            INNER JOIN pg_namespace AS n ON n.oid = t.cfgnamespace
            WHERE format('%I.%I', n.nspname, t.cfgname) = given_configuration
        )
        AND NOT EXISTS (SELECT FROM sag.document AS d WHERE d.collection_id = c.collection_id);
    SELECT c.text_search_configuration INTO present_configuration
    FROM sag.collection AS c WHERE c.name = import_collection.collection;
    IF present_configuration <> given_configuration THEN
        RAISE NOTICE 'collection % keeps its text search configuration %',
            quote_literal(import_collection.collection), present_configuration
        USING DETAIL = format('The exported one has %s.', given_configuration);
    END IF;
END
$$;
COMMENT ON FUNCTION sag.import_collection(text, jsonb, boolean) IS
'Makes ready for documents of an export: fixes the embedding space where there is none, adds the '
'types of entities that are missing, and makes the collection that sag.export_collection() '
'describes. One that holds documents, or has settings of its own, keeps what it has.';
