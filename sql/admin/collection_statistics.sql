CREATE OR REPLACE FUNCTION sag.collection_statistics()
RETURNS TABLE (
    collection text, documents bigint, events bigint, embeddings bigint, entities bigint
)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN QUERY
    SELECT
        c.name,
        (SELECT count(*) FROM sag.document AS d WHERE d.collection_id = c.collection_id),
        s.event_total,
        s.embedding_total,
        (SELECT count(*) FROM sag.entity AS n WHERE n.collection_id = c.collection_id)
    FROM sag.collection AS c
    INNER JOIN sag.collection_statistic AS s ON s.collection_id = c.collection_id
    ORDER BY c.name;
END
$$;
COMMENT ON FUNCTION sag.collection_statistics() IS 'What each collection holds.';
