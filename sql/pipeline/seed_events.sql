CREATE OR REPLACE FUNCTION sag.seed_events(
    target bigint,
    embedding halfvec,
    queries tsquery[],
    weights double precision[],
    event_counts bigint[],
    average_length double precision,
    entity_ids bigint[],
    entity_event_counts bigint[],
    filter jsonpath DEFAULT NULL,
    read_all boolean DEFAULT FALSE,
    event_similarity double precision DEFAULT 0.4,
    seed_event_limit integer DEFAULT 60,
    seed_entity_event_limit integer DEFAULT 20,
    event_budget integer DEFAULT 2000
)
RETURNS TABLE (event_id bigint, path text, relevance double precision, entity_id bigint)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 100
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    -- Path B. Of events without a vector among others with one, the lexical score is put on the
    -- scale of the similarities found: one with all words of the question is as near as the
    -- nearest, one with none of them as the farthest that was found.
    WITH nearest AS MATERIALIZED (
        SELECT v.event_id, v.similarity
        FROM sag.search_vectors(
            seed_events.target, seed_events.embedding, seed_events.filter, seed_events.read_all,
            NULL,
            CASE WHEN seed_events.embedding IS NULL THEN 0 ELSE seed_events.seed_event_limit END
        ) AS v
        WHERE v.similarity >= seed_events.event_similarity
    ),
    lexical AS MATERIALIZED (
        SELECT x.event_id, x.score
        FROM sag.search_lexemes(
            seed_events.target, seed_events.queries, seed_events.weights,
            seed_events.event_counts, seed_events.average_length, seed_events.filter,
            seed_events.event_budget, seed_events.seed_event_limit, seed_events.read_all,
            seed_events.embedding IS NOT NULL
        ) AS x
        WHERE seed_events.queries IS NOT NULL
    )
    SELECT n.event_id, 'direct', n.similarity, NULL::bigint
    FROM nearest AS n
    UNION ALL
    SELECT
        x.event_id, 'direct',
        CASE WHEN seed_events.embedding IS NULL THEN x.score
            ELSE coalesce(k.low, 0) + (coalesce(k.high, 1) - coalesce(k.low, 0))
                * least(1, x.score / k.all_words)
        END,
        NULL
    FROM lexical AS x
    CROSS JOIN (
        SELECT
            min(n.similarity) AS low, max(n.similarity) AS high,
            nullif((SELECT sum(w.weight) FROM unnest(seed_events.weights) AS w (weight)), 0)
            AS all_words
        FROM nearest AS n
    ) AS k
    UNION ALL
    -- Path A, capped per entity, the most relevant first. Only a hub has more events than the
    -- budget; without an embedding some of them have to do.
    SELECT s.event_id, 'entity', s.relevance, u.entity_id
    FROM unnest(seed_events.entity_ids, seed_events.entity_event_counts)
        AS u (entity_id, event_count)
    CROSS JOIN LATERAL (
        SELECT
            l.event_id,
            sag.relevance(
                e.embedding, e.lexemes, e.lexeme_count, seed_events.embedding, seed_events.queries,
                seed_events.weights, seed_events.average_length
            ) AS relevance
        FROM (
            SELECT x.event_id
            FROM sag.event_entity AS x
            WHERE x.collection_id = seed_events.target AND x.entity_id = u.entity_id
                AND (
                    u.event_count <= seed_events.event_budget OR seed_events.embedding IS NULL
                )
            LIMIT seed_events.event_budget
        ) AS l
        CROSS JOIN LATERAL (
            SELECT x.document_id, x.embedding, x.lexemes, x.lexeme_count
            FROM sag.event AS x
            WHERE x.collection_id = seed_events.target AND x.event_id = l.event_id
            LIMIT 1
        ) AS e
        WHERE seed_events.filter IS NULL OR e.document_id IN (
            SELECT d.document_id FROM sag.document AS d
            WHERE d.collection_id = seed_events.target AND d.metadata @@ seed_events.filter
        )
        ORDER BY 2 DESC NULLS LAST, l.event_id ASC
        LIMIT seed_events.seed_entity_event_limit
    ) AS s
    UNION ALL
    -- With one, the nearest that carry the hub.
    SELECT h.event_id, 'entity', h.similarity, u.entity_id
    FROM unnest(seed_events.entity_ids, seed_events.entity_event_counts)
        AS u (entity_id, event_count)
    CROSS JOIN LATERAL sag.search_vectors(
        seed_events.target, seed_events.embedding, seed_events.filter, seed_events.read_all,
        u.entity_id, seed_events.seed_entity_event_limit
    ) AS h
    WHERE u.event_count > seed_events.event_budget AND seed_events.embedding IS NOT NULL;
END
$$;
COMMENT ON FUNCTION sag.seed_events(
    bigint, halfvec, tsquery[], double precision[], bigint[], double precision, bigint[], bigint[],
    jsonpath, boolean, double precision, integer, integer, integer
) IS
'E_R: path "entity" joins from the linked entities, path "direct" takes the nearest events by '
'vector, or by lexemes where there is no embedding.';
