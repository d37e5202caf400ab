CREATE OR REPLACE FUNCTION sag.list_reembed_tasks() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    only_missing boolean := sag.fills_missing();
BEGIN
    PERFORM FROM sag.reembedding AS r WHERE r.row_total IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO sag.reembed_task (collection_id, kind, row_id)
    SELECT e.collection_id, 'event', e.event_id
    FROM sag.event AS e
    WHERE e.embedding IS NULL OR NOT only_missing
    UNION ALL
    -- Chunks whose own text is their event have neither lexemes nor a vector.
    SELECT c.collection_id, 'chunk', c.chunk_id
    FROM sag.chunk AS c
    WHERE c.lexemes IS NOT NULL AND (c.embedding IS NULL OR NOT only_missing)
    UNION ALL
    -- A model that knows more scripts embeds names that the present one passed over.
    SELECT n.collection_id, 'entity', n.entity_id
    FROM sag.entity AS n
    WHERE n.collection_id IN (
        SELECT c.collection_id FROM sag.collection AS c
        WHERE EXISTS (
            SELECT FROM sag.entity AS x
            WHERE x.collection_id = c.collection_id AND x.embedding IS NOT NULL
        )
    ) AND (n.embedding IS NULL OR NOT only_missing)
    ON CONFLICT DO NOTHING;
    UPDATE sag.reembedding AS r SET row_total = (SELECT count(*) FROM sag.reembed_task);
END
$$;
COMMENT ON FUNCTION sag.list_reembed_tasks() IS
'Lists in sag.reembed_task what the next model has to embed: all events, chunks with a text beside '
'their event''s, and the entities of collections that embed them. Does so once for each change.';
