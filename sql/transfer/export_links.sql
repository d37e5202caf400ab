CREATE OR REPLACE FUNCTION sag.export_links(collection text) RETURNS TABLE (line jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(export_links.collection);
BEGIN
    RETURN QUERY
    SELECT jsonb_build_object(
        'source', d.source, 'ordinal', c.ordinal, 'entity', n.name, 'type', l.type,
        'is_subject', l.is_subject, 'role', l.role,
        -- Those that this event gave.
        'aliases', (
            SELECT coalesce(jsonb_agg(a.name ORDER BY a.normalized_name COLLATE "C"), '[]')
            FROM sag.event_alias AS g
            INNER JOIN sag.entity_alias AS a
                ON a.collection_id = target AND a.entity_id = g.entity_id
                AND a.normalized_name = g.normalized_name
            WHERE g.collection_id = target AND g.event_id = l.event_id
                AND g.entity_id = l.entity_id
        )
    )
    FROM sag.event_entity AS l
    INNER JOIN sag.entity AS n ON n.collection_id = target AND n.entity_id = l.entity_id
    INNER JOIN sag.event AS e ON e.collection_id = target AND e.event_id = l.event_id
    INNER JOIN sag.chunk AS c ON c.collection_id = target AND c.chunk_id = e.chunk_id
    INNER JOIN sag.document AS d
        ON d.collection_id = target AND d.document_id = e.document_id
    WHERE l.collection_id = target
    ORDER BY d.source COLLATE "C", c.ordinal, n.normalized_name COLLATE "C";
END
$$;
COMMENT ON FUNCTION sag.export_links(text) IS
'Which event carries which entity, for sag-pg export, in the order of the events.';
