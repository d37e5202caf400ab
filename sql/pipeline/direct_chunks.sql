CREATE OR REPLACE FUNCTION sag.direct_chunks(
    target bigint,
    embedding halfvec,
    queries tsquery[],
    weights double precision[],
    event_counts bigint[],
    average_length double precision,
    direct_event_ids bigint[],
    direct_relevances double precision[],
    has_statements boolean DEFAULT TRUE,
    filter jsonpath DEFAULT NULL,
    read_all boolean DEFAULT FALSE,
    direct_chunk_limit integer DEFAULT 5,
    event_budget integer DEFAULT 2000
)
RETURNS TABLE (rank integer, chunk_id bigint, relevance double precision)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 5
SET search_path FROM CURRENT
-- Of a collection that ANALYZE has not seen yet the planner expects one row, and would rather sort
-- that than scan the vector index in order.
SET enable_sort = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    -- Chunks whose text is their event's were found by path B already.
    WITH verbatim AS MATERIALIZED (
        SELECT e.chunk_id, p.relevance
        FROM unnest(direct_chunks.direct_event_ids, direct_chunks.direct_relevances)
            AS p (event_id, relevance)
        INNER JOIN sag.event AS e
            ON e.collection_id = direct_chunks.target AND e.event_id = p.event_id
        WHERE e.content IS NULL
        ORDER BY p.relevance DESC, p.event_id ASC
        LIMIT direct_chunks.direct_chunk_limit
    ),
    nearest AS MATERIALIZED (
        SELECT c.chunk_id, c.embedding <=> direct_chunks.embedding AS distance
        FROM sag.chunk AS c
        WHERE direct_chunks.has_statements AND NOT direct_chunks.read_all
            AND direct_chunks.embedding IS NOT NULL
            AND c.collection_id = direct_chunks.target
            AND c.embedding IS NOT NULL
            AND (direct_chunks.filter IS NULL OR c.document_id IN (
                SELECT d.document_id FROM sag.document AS d
                WHERE d.collection_id = direct_chunks.target AND d.metadata @@ direct_chunks.filter
            ))
        ORDER BY c.embedding <=> direct_chunks.embedding
        LIMIT direct_chunks.direct_chunk_limit
    ),
    read AS MATERIALIZED (
        SELECT c.chunk_id, c.embedding <=> direct_chunks.embedding AS distance
        FROM sag.chunk AS c
        WHERE direct_chunks.has_statements AND direct_chunks.read_all
            AND direct_chunks.embedding IS NOT NULL
            AND c.collection_id = direct_chunks.target
            AND c.embedding IS NOT NULL
            AND (direct_chunks.filter IS NULL OR c.document_id IN (
                SELECT d.document_id FROM sag.document AS d
                WHERE d.collection_id = direct_chunks.target AND d.metadata @@ direct_chunks.filter
            ))
        ORDER BY (c.embedding <=> direct_chunks.embedding) + 0
        LIMIT direct_chunks.direct_chunk_limit
    ),
    lexical AS MATERIALIZED (
        SELECT
            c.chunk_id,
            sag.lexical_score(
                c.lexemes, length(c.lexemes), direct_chunks.queries, direct_chunks.weights,
                direct_chunks.average_length
            ) AS score
        FROM (
            SELECT x.chunk_id, x.lexemes
            FROM sag.chunk AS x
            WHERE NOT direct_chunks.read_all
                AND x.collection_id = direct_chunks.target
                AND x.lexemes IS NOT NULL
                AND x.lexemes @@ (
                    SELECT string_agg(r.query::text, ' | ')::tsquery
                    FROM sag.rarest_lexemes(
                        direct_chunks.queries, direct_chunks.event_counts,
                        direct_chunks.event_budget
                    ) AS r
                )
                AND (direct_chunks.filter IS NULL OR x.document_id IN (
                    SELECT d.document_id FROM sag.document AS d
                    WHERE d.collection_id = direct_chunks.target
                        AND d.metadata @@ direct_chunks.filter
                ))
            UNION ALL
            SELECT y.chunk_id, y.lexemes
            FROM sag.document AS d
            CROSS JOIN LATERAL (
                SELECT x.chunk_id, x.lexemes
                FROM sag.chunk AS x
                WHERE x.collection_id = direct_chunks.target AND x.document_id = d.document_id
                    AND x.lexemes @@ ANY(direct_chunks.queries)
                LIMIT 1000000
            ) AS y
            WHERE direct_chunks.read_all
                AND d.collection_id = direct_chunks.target
                AND (direct_chunks.filter IS NULL OR d.metadata @@ direct_chunks.filter)
        ) AS c
        WHERE direct_chunks.has_statements AND direct_chunks.embedding IS NULL
        ORDER BY 2 DESC, 1 ASC
        LIMIT direct_chunks.direct_chunk_limit
    )
    SELECT
        row_number() OVER (ORDER BY x.relevance DESC, x.chunk_id ASC)::integer,
        x.chunk_id, x.relevance
    FROM (
        SELECT v.chunk_id, v.relevance FROM verbatim AS v
        UNION ALL
        SELECT v.chunk_id, 1 - v.distance / 2 FROM (TABLE nearest UNION ALL TABLE read) AS v
        UNION ALL
        SELECT l.chunk_id, l.score FROM lexical AS l
    ) AS x
    ORDER BY 1
    LIMIT direct_chunks.direct_chunk_limit;
END
$$;
COMMENT ON FUNCTION sag.direct_chunks(
    bigint, halfvec, tsquery[], double precision[], bigint[], double precision, bigint[],
    double precision[], boolean, jsonpath, boolean, integer, integer
) IS
'C_direct: the chunks nearest to the question by vector, or by lexemes without an embedding.';
