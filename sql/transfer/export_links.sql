CREATE OR REPLACE FUNCTION sag.export_links(collection text) RETURNS refcursor
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(export_links.collection);
    lines refcursor := 'sag_export_links';
BEGIN
    OPEN lines NO SCROLL FOR
    SELECT row_to_json(x)::text AS line
    FROM (
        SELECT
            d.source, c.ordinal, n.name AS entity, l.type, l.is_subject, l.role,
            -- The entity's further names that this event gave.
            (
                SELECT coalesce(json_agg(a.name ORDER BY a.normalized_name COLLATE "C"), '[]')
                FROM sag.event_alias AS g
                INNER JOIN sag.entity_alias AS a
                    ON a.collection_id = target AND a.entity_id = g.entity_id
                    AND a.normalized_name = g.normalized_name
                WHERE g.collection_id = target AND g.event_id = l.event_id
                    AND g.entity_id = l.entity_id
            ) AS aliases
        FROM sag.document AS d
        INNER JOIN sag.chunk AS c
            ON c.collection_id = target AND c.document_id = d.document_id
        INNER JOIN sag.event AS e ON e.collection_id = target AND e.chunk_id = c.chunk_id
        INNER JOIN sag.event_entity AS l ON l.collection_id = target AND l.event_id = e.event_id
        INNER JOIN sag.entity AS n ON n.collection_id = target AND n.entity_id = l.entity_id
        WHERE d.collection_id = target
        ORDER BY d.source COLLATE "C", c.ordinal, n.normalized_name COLLATE "C"
    ) AS x;
    RETURN lines;
END
$$;
COMMENT ON FUNCTION sag.export_links(text) IS
'Opens a cursor over the lines of links.jsonl: which event carries which entity, in the order of '
'the events. For sag-pg export.';
