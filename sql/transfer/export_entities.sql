CREATE OR REPLACE FUNCTION sag.export_entities(collection text) RETURNS refcursor
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(export_entities.collection);
    lines refcursor := 'sag_export_entities';
BEGIN
    OPEN lines NO SCROLL FOR
    SELECT row_to_json(x)::text AS line
    FROM (
        SELECT
            n.name,
            n.embedding::text::json AS embedding,
            -- What an event gave stands with the event's link, and goes with it.
            (
                SELECT coalesce(
                    json_agg(
                        json_build_object('name', a.name, 'origin', a.origin)
                        ORDER BY a.normalized_name COLLATE "C"
                    ), '[]'
                )
                FROM sag.entity_alias AS a
                WHERE a.collection_id = target AND a.entity_id = n.entity_id
                    AND (a.origin = 'person' OR NOT EXISTS (
                        SELECT FROM sag.event_alias AS g
                        WHERE g.collection_id = target AND g.entity_id = a.entity_id
                            AND g.normalized_name = a.normalized_name
                    ))
            ) AS aliases
        FROM sag.entity AS n
        WHERE n.collection_id = target
            -- One without events is there for the names that a person gave it, or by chance.
            AND (n.event_count > 0 OR EXISTS (
                SELECT FROM sag.entity_alias AS a
                WHERE a.collection_id = target AND a.entity_id = n.entity_id
                    AND a.origin = 'person'
            ))
        ORDER BY n.normalized_name COLLATE "C"
    ) AS x;
    RETURN lines;
END
$$;
COMMENT ON FUNCTION sag.export_entities(text) IS
'Opens a cursor over the lines of entities.jsonl: the entities of a collection by name, with those '
'aliases that are no event''s. For sag-pg export.';
