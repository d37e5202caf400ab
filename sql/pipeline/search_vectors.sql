CREATE OR REPLACE FUNCTION sag.search_vectors(
    target bigint,
    embedding halfvec,
    filter jsonpath DEFAULT NULL,
    read_all boolean DEFAULT FALSE,
    entity_id bigint DEFAULT NULL,
    result_limit integer DEFAULT 60
)
RETURNS TABLE (event_id bigint, similarity double precision)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 60
SET search_path FROM CURRENT
-- Of a collection that ANALYZE has not seen yet the planner expects one row, and would rather sort
-- that than scan the vector index in order.
SET enable_sort = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    -- The nearest events stand alone in their CTE with the operator in ORDER BY, or the vector
    -- index is not used.
    WITH nearest AS MATERIALIZED (
        SELECT e.event_id, e.embedding <=> search_vectors.embedding AS distance
        FROM sag.event AS e
        WHERE NOT search_vectors.read_all
            AND e.collection_id = search_vectors.target
            AND e.embedding IS NOT NULL
            AND (search_vectors.filter IS NULL OR e.document_id IN (
                SELECT d.document_id FROM sag.document AS d
                WHERE d.collection_id = search_vectors.target
                    AND d.metadata @@ search_vectors.filter
            ))
            AND (search_vectors.entity_id IS NULL OR sag.event_has_entity(
                search_vectors.target, e.event_id, search_vectors.entity_id
            ))
        ORDER BY e.embedding <=> search_vectors.embedding
        LIMIT search_vectors.result_limit
    ),
    -- The sum keeps the vector index out where reading all is cheaper or finds more: in a small
    -- collection among large ones, and under a filter that few documents pass.
    read AS MATERIALIZED (
        SELECT e.event_id, e.embedding <=> search_vectors.embedding AS distance
        FROM sag.event AS e
        WHERE search_vectors.read_all
            AND e.collection_id = search_vectors.target
            AND e.embedding IS NOT NULL
            AND (search_vectors.filter IS NULL OR e.document_id IN (
                SELECT d.document_id FROM sag.document AS d
                WHERE d.collection_id = search_vectors.target
                    AND d.metadata @@ search_vectors.filter
            ))
            AND (search_vectors.entity_id IS NULL OR sag.event_has_entity(
                search_vectors.target, e.event_id, search_vectors.entity_id
            ))
        ORDER BY (e.embedding <=> search_vectors.embedding) + 0
        LIMIT search_vectors.result_limit
    )
    SELECT v.event_id, 1 - v.distance / 2
    FROM (TABLE nearest UNION ALL TABLE read) AS v
    ORDER BY v.distance, v.event_id;
END
$$;
COMMENT ON FUNCTION sag.search_vectors(bigint, halfvec, jsonpath, boolean, bigint, integer) IS
'The nearest events of a collection by vector, through the HNSW index or, with read_all, exactly; '
'with an entity, those that carry it.';
