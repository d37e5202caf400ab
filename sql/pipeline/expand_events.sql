CREATE OR REPLACE FUNCTION sag.expand_events(
    target bigint,
    embedding halfvec,
    queries tsquery[],
    weights double precision[],
    average_length double precision,
    event_total bigint,
    event_ids bigint[],
    relevances double precision[],
    entity_ids bigint[],
    entity_weights double precision[],
    filter jsonpath DEFAULT NULL,
    hops integer DEFAULT 1,
    frontier_seed_limit integer DEFAULT 20,
    frontier_limit integer DEFAULT 50,
    frontier_event_budget integer DEFAULT 2000,
    similarity_weight double precision DEFAULT 0.6,
    query_entity_weight double precision DEFAULT 0.3,
    query_entity_cap double precision DEFAULT 1.5,
    subject_weight double precision DEFAULT 1.5
)
RETURNS TABLE (
    event_id bigint, hop integer, relevance double precision, entity_id bigint,
    from_event_id bigint
)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 1000
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    -- One row a hop. It carries what has been seen, so that each hop meets new entities and new
    -- events only, and what the hop brought.
    WITH RECURSIVE walk AS (
        SELECT
            0 AS hop,
            expand_events.event_ids AS seen_event_ids,
            expand_events.relevances AS seen_relevances,
            expand_events.entity_ids AS seen_entity_ids,
            NULL::bigint[] AS new_event_ids,
            NULL::double precision[] AS new_relevances,
            NULL::bigint[] AS via_entity_ids,
            NULL::bigint[] AS via_event_ids
        UNION ALL
        SELECT
            w.hop + 1,
            w.seen_event_ids || step.new_event_ids,
            w.seen_relevances || step.new_relevances,
            w.seen_entity_ids || step.frontier_ids,
            step.new_event_ids,
            step.new_relevances,
            step.via_entity_ids,
            step.via_event_ids
        FROM walk AS w
        CROSS JOIN LATERAL (
            WITH seed AS MATERIALIZED (
                SELECT b.event_id, b.base
                FROM sag.event_base(
                    expand_events.target, w.seen_event_ids, w.seen_relevances,
                    expand_events.entity_ids, expand_events.entity_weights,
                    expand_events.similarity_weight, expand_events.query_entity_weight,
                    expand_events.query_entity_cap, expand_events.subject_weight
                ) AS b
                ORDER BY b.base DESC, b.event_id ASC
                LIMIT expand_events.frontier_seed_limit
            ),
            -- The reverse join. An entity with a single event leads nowhere, and its idf would
            -- put it before the bridges.
            reached AS MATERIALIZED (
                SELECT
                    l.entity_id,
                    n.event_count,
                    sum(s.base)
                    * ln(1 + expand_events.event_total::double precision / n.event_count)
                    AS weight,
                    (array_agg(s.event_id ORDER BY s.base DESC, s.event_id ASC))[1] AS from_event_id
                FROM seed AS s
                -- The LIMITs, which nothing reaches, make these joins probes of an index: with
                -- little known of a collection the planner may prefer to read all of it once.
                CROSS JOIN LATERAL (
                    SELECT x.entity_id
                    FROM sag.event_entity AS x
                    WHERE x.collection_id = expand_events.target AND x.event_id = s.event_id
                    LIMIT 10000
                ) AS l
                CROSS JOIN LATERAL (
                    SELECT x.event_count
                    FROM sag.entity AS x
                    WHERE x.collection_id = expand_events.target AND x.entity_id = l.entity_id
                    LIMIT 1
                ) AS n
                WHERE n.event_count > 1 AND l.entity_id <> ALL(w.seen_entity_ids)
                GROUP BY l.entity_id, n.event_count
            ),
            frontier AS MATERIALIZED (
                SELECT t.entity_id, t.weight, t.from_event_id
                FROM (
                    SELECT
                        r.*,
                        sag.take_within(r.event_count, expand_events.frontier_event_budget) OVER (
                            ORDER BY r.weight DESC, r.entity_id ASC ROWS UNBOUNDED PRECEDING
                        ) AS is_taken
                    FROM reached AS r
                ) AS t
                WHERE t.is_taken
                ORDER BY t.weight DESC, t.entity_id ASC
                LIMIT expand_events.frontier_limit
            ),
            -- The forward join.
            arrived AS MATERIALIZED (
                SELECT DISTINCT ON (l.event_id) l.event_id, f.entity_id, f.from_event_id
                FROM frontier AS f
                CROSS JOIN LATERAL (
                    SELECT x.event_id
                    FROM sag.event_entity AS x
                    WHERE x.collection_id = expand_events.target AND x.entity_id = f.entity_id
                    LIMIT expand_events.frontier_event_budget
                ) AS l
                WHERE NOT EXISTS (
                    SELECT FROM unnest(w.seen_event_ids) AS x (event_id)
                    WHERE x.event_id = l.event_id
                )
                ORDER BY l.event_id, f.weight DESC, f.entity_id
            )
            SELECT
                array_agg(a.event_id) AS new_event_ids,
                array_agg(a.entity_id) AS via_entity_ids,
                array_agg(a.from_event_id) AS via_event_ids,
                array_agg(sag.relevance(
                    e.embedding, e.lexemes, e.lexeme_count, expand_events.embedding,
                    expand_events.queries, expand_events.weights, expand_events.average_length
                )) AS new_relevances,
                (SELECT array_agg(f.entity_id) FROM frontier AS f) AS frontier_ids
            FROM arrived AS a
            CROSS JOIN LATERAL (
                SELECT x.document_id, x.embedding, x.lexemes, x.lexeme_count
                FROM sag.event AS x
                WHERE x.collection_id = expand_events.target AND x.event_id = a.event_id
                LIMIT 1
            ) AS e
            WHERE expand_events.filter IS NULL OR e.document_id IN (
                SELECT d.document_id FROM sag.document AS d
                WHERE d.collection_id = expand_events.target
                    AND d.metadata @@ expand_events.filter
            )
        ) AS step
        WHERE w.hop < expand_events.hops AND step.new_event_ids IS NOT NULL
    )
    SELECT n.event_id, w.hop, n.relevance, n.entity_id, n.from_event_id
    FROM walk AS w
    CROSS JOIN LATERAL unnest(w.new_event_ids, w.new_relevances, w.via_entity_ids, w.via_event_ids)
        AS n (event_id, relevance, entity_id, from_event_id)
    WHERE w.hop > 0;
END
$$;
COMMENT ON FUNCTION sag.expand_events(
    bigint, halfvec, tsquery[], double precision[], double precision, bigint, bigint[],
    double precision[], bigint[], double precision[], jsonpath, integer, integer, integer, integer,
    double precision, double precision, double precision, double precision
) IS
'E_E: from the best seeds to their entities that were not seen yet, and from those to further '
'events, hop by hop, within the limits of the frontier.';
