CREATE OR REPLACE FUNCTION sag.import_collection(collection text, facts jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    is_new boolean := NOT EXISTS (
        SELECT FROM sag.collection AS c WHERE c.name = import_collection.collection
    );
BEGIN
    PERFORM sag.create_collection(
        import_collection.collection, import_collection.facts ->> 'text_search_configuration'
    );
    IF is_new THEN
        PERFORM sag.set_parameter(p.name, p.value, import_collection.collection)
        FROM jsonb_each(import_collection.facts -> 'parameters') AS p (name, value);
    END IF;
    -- The owner alone may add types, and others are stopped only where there is one to add.
    IF EXISTS (
        SELECT FROM jsonb_object_keys(import_collection.facts -> 'entity_types') AS t (name)
        WHERE NOT EXISTS (SELECT FROM sag.entity_type AS k WHERE k.name = t.name)
    ) THEN
        INSERT INTO sag.entity_type (name, description)
        SELECT t.name, t.description
        FROM jsonb_each_text(import_collection.facts -> 'entity_types') AS t (name, description)
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;
COMMENT ON FUNCTION sag.import_collection(text, jsonb) IS
'Makes the collection that a line of sag.export_collection() describes, and the types of entities '
'that it needs. One that is there keeps its own configuration and parameters.';
