CREATE OR REPLACE FUNCTION sag.export_collection(collection text) RETURNS TABLE (line jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(export_collection.collection);
BEGIN
    RETURN QUERY
    SELECT jsonb_build_object(
        'collection', c.name,
        'text_search_configuration', c.text_search_configuration,
        'parameters', c.parameters,
        'embedding_space', (
            SELECT jsonb_build_object('model', s.model, 'dimensions', s.dimensions)
            FROM sag.embedding_space AS s
        ),
        'entity_types', (
            SELECT coalesce(jsonb_object_agg(t.name, t.description), '{}')
            FROM sag.entity_type AS t
            WHERE EXISTS (
                SELECT FROM sag.event_entity AS l
                WHERE l.collection_id = target AND l.type = t.name
            )
        )
    )
    FROM sag.collection AS c
    WHERE c.collection_id = target;
END
$$;
COMMENT ON FUNCTION sag.export_collection(text) IS
'What a collection is, beside what it holds, for the manifest of sag-pg export.';
