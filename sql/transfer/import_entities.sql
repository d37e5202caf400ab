CREATE OR REPLACE FUNCTION sag.import_entities(collection text, entities jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.lock_collection(import_entities.collection);
BEGIN
    -- One without events is here for the aliases that a person gave it.
    INSERT INTO sag.entity AS n (collection_id, name, embedding)
    SELECT target, x.name, x.embedding::halfvec
    FROM jsonb_to_recordset(import_entities.entities)
        AS x (name text, embedding text, aliases jsonb)
    WHERE x.embedding IS NOT NULL OR x.aliases <> '[]'
    ON CONFLICT (collection_id, normalized_name) DO UPDATE
    SET embedding = coalesce(n.embedding, excluded.embedding);
    INSERT INTO sag.entity_alias (collection_id, entity_id, name, origin)
    SELECT target, n.entity_id, a.name, a.origin
    FROM jsonb_to_recordset(import_entities.entities) AS x (name text, aliases jsonb)
    CROSS JOIN jsonb_to_recordset(x.aliases) AS a (name text, origin text)
    INNER JOIN sag.entity AS n
        ON n.collection_id = target AND n.normalized_name = sag.normalize_entity(x.name)
    ON CONFLICT DO NOTHING;
    -- Those that only had a vector belong to documents that somebody deleted meanwhile.
    PERFORM sag.remove_orphans(target, ARRAY(
        SELECT n.entity_id
        FROM jsonb_to_recordset(import_entities.entities) AS x (name text)
        INNER JOIN sag.entity AS n
            ON n.collection_id = target AND n.normalized_name = sag.normalize_entity(x.name)
        WHERE n.event_count = 0
    ));
END
$$;
COMMENT ON FUNCTION sag.import_entities(text, jsonb) IS
'Takes lines of sag.export_entities() after their documents: vectors of names, and aliases.';
