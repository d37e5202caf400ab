CREATE OR REPLACE FUNCTION sag.check_batch() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    unknown text;
BEGIN
    SELECT b.type INTO unknown FROM pg_temp.sag_batch_entity AS b
    WHERE NOT EXISTS (SELECT FROM sag.entity_type AS t WHERE t.name = b.type) LIMIT 1;
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION 'entity type % does not exist', quote_literal(unknown)
        USING ERRCODE = 'foreign_key_violation',
        DETAIL = (SELECT 'Known types: ' || string_agg(t.name, ', ' ORDER BY t.name) || '.'
            FROM sag.entity_type AS t),
        HINT = 'Add it to sag.entity_type, or give the entity a known type.';
    END IF;
    IF NOT EXISTS (SELECT FROM sag.embedding_space) AND EXISTS (
        SELECT FROM pg_temp.sag_batch_chunk AS b
        WHERE b.event_embedding IS NOT NULL OR b.chunk_embedding IS NOT NULL
        UNION ALL
        SELECT FROM pg_temp.sag_batch_entity AS b WHERE b.embedding IS NOT NULL
    ) THEN
        RAISE EXCEPTION 'this database has no embedding space yet'
        USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'SELECT sag.set_embedding_space(model, dimensions) sets it.';
    END IF;
END
$$;
COMMENT ON FUNCTION sag.check_batch() IS
'Refuses a batch with entity types that do not exist, or with vectors where none can be kept. A '
'step of sag.merge_batch().';
