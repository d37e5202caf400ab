CREATE OR REPLACE FUNCTION sag.export_entities(collection text) RETURNS TABLE (line jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(export_entities.collection);
BEGIN
    RETURN QUERY
    SELECT jsonb_build_object(
        'name', n.name, 'embedding', n.embedding::text,
        'aliases', (
            SELECT coalesce(
                jsonb_agg(
                    jsonb_build_object('name', a.name, 'origin', a.origin)
                    ORDER BY a.normalized_name COLLATE "C"
                ), '[]'
            )
            FROM sag.entity_alias AS a
            WHERE a.collection_id = target AND a.entity_id = n.entity_id
        )
    )
    FROM sag.entity AS n
    WHERE n.collection_id = target
    ORDER BY n.normalized_name COLLATE "C";
END
$$;
COMMENT ON FUNCTION sag.export_entities(text) IS
'The entities of a collection with their aliases for sag-pg export, by name.';
