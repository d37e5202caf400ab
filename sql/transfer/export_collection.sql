DO $$
DECLARE
    earlier regprocedure;
BEGIN
    FOR earlier IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = 'sag'::regnamespace
            AND (p.proname LIKE 'export\_%' AND p.proretset
                OR p.oid IN (
                    to_regprocedure('sag.import_collection(text, jsonb)'),
                    to_regprocedure('sag.import_entities(text, jsonb)')
                ))
    LOOP
        EXECUTE format('DROP FUNCTION %s', earlier);
    END LOOP;
END
$$;
CREATE OR REPLACE FUNCTION sag.export_collection(collection text) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(export_collection.collection);
    has_vectors boolean := EXISTS (
        SELECT FROM sag.event AS e WHERE e.collection_id = target AND e.embedding IS NOT NULL
    ) OR EXISTS (
        SELECT FROM sag.chunk AS c WHERE c.collection_id = target AND c.embedding IS NOT NULL
    ) OR EXISTS (
        SELECT FROM sag.entity AS n WHERE n.collection_id = target AND n.embedding IS NOT NULL
    );
BEGIN
    RETURN (
        SELECT jsonb_build_object(
            'collection', c.name,
            'text_search_configuration', c.text_search_configuration,
            'parameters', c.parameters,
            'embedding_space', (
                SELECT jsonb_build_object('model', s.model, 'dimensions', s.dimensions)
                FROM sag.embedding_space AS s
                WHERE has_vectors
            ),
            'entity_types', (
                SELECT coalesce(jsonb_object_agg(t.name, t.description), '{}')
                FROM sag.entity_type AS t
                WHERE t.name IN (
                    SELECT l.type FROM sag.event_entity AS l WHERE l.collection_id = target
                )
            )
        )
        FROM sag.collection AS c
        WHERE c.collection_id = target
    );
END
$$;
COMMENT ON FUNCTION sag.export_collection(text) IS
'What a collection is, beside what it holds: its name, text search configuration and parameters, '
'the model of its vectors, and the types of its entities. For the manifest of sag-pg export.';
