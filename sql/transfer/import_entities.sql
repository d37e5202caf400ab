CREATE OR REPLACE FUNCTION sag.import_entities(
    collection text, entities json, with_embeddings boolean DEFAULT TRUE
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.lock_collection(import_entities.collection);
BEGIN
    CREATE TEMPORARY TABLE sag_import_entity ON COMMIT DROP AS
    SELECT DISTINCT ON (x.normalized_name COLLATE "C")
        x.normalized_name,
        x.name,
        x.aliases,
        CASE WHEN import_entities.with_embeddings AND l2_norm(x.embedding) > 0
            THEN x.embedding
        END AS embedding
    FROM (
        SELECT
            e.name, sag.normalize_entity(e.name) AS normalized_name, e.aliases,
            e.embedding::text::halfvec AS embedding
        FROM json_to_recordset(import_entities.entities)
            AS e (name text, embedding json, aliases jsonb)
    ) AS x
    ORDER BY x.normalized_name COLLATE "C";
    ANALYZE pg_temp.sag_import_entity;

    -- Without an event, only the names that a person gave it are worth an entity.
    INSERT INTO sag.entity (collection_id, name, embedding)
    SELECT target, x.name, x.embedding
    FROM pg_temp.sag_import_entity AS x
    WHERE x.aliases @> '[{"origin": "person"}]'
        AND char_length(x.normalized_name) BETWEEN 2 AND 400
    ORDER BY x.normalized_name
    ON CONFLICT DO NOTHING;
    UPDATE sag.entity AS n SET embedding = x.embedding
    FROM pg_temp.sag_import_entity AS x
    WHERE n.collection_id = target AND n.normalized_name = x.normalized_name
        AND n.embedding IS NULL AND x.embedding IS NOT NULL;
    IF EXISTS (SELECT FROM sag.reembedding) THEN
        INSERT INTO sag.reembed_task (collection_id, kind, row_id)
        SELECT target, 'entity', n.entity_id
        FROM pg_temp.sag_import_entity AS x
        INNER JOIN sag.entity AS n
            ON n.collection_id = target AND n.normalized_name = x.normalized_name
        WHERE n.embedding IS NOT NULL AND n.next_embedding IS NULL
        ON CONFLICT DO NOTHING;
    END IF;

    INSERT INTO sag.entity_alias AS k (collection_id, entity_id, name, origin)
    SELECT DISTINCT ON (n.entity_id, sag.normalize_entity(a.name) COLLATE "C")
        target, n.entity_id, a.name, a.origin
    FROM pg_temp.sag_import_entity AS x
    CROSS JOIN jsonb_to_recordset(x.aliases) AS a (name text, origin text)
    INNER JOIN sag.entity AS n
        ON n.collection_id = target AND n.normalized_name = x.normalized_name
    WHERE char_length(sag.normalize_entity(a.name)) BETWEEN 2 AND 400
    ORDER BY n.entity_id, sag.normalize_entity(a.name) COLLATE "C", a.origin DESC, a.name
    ON CONFLICT (collection_id, normalized_name, entity_id) DO UPDATE SET origin = 'person'
    WHERE excluded.origin = 'person' AND k.origin <> 'person';
    DROP TABLE pg_temp.sag_import_entity;
END
$$;
COMMENT ON FUNCTION sag.import_entities(text, json, boolean) IS
'Takes an array of lines of entities.jsonl, once the documents are there: vectors of names that '
'have none yet, and aliases. An entity that is not there is made for the names that a person gave '
'it, and left out otherwise.';
