CREATE OR REPLACE FUNCTION sag.rank_events(
    target bigint,
    event_total bigint,
    event_ids bigint[],
    relevances double precision[],
    entity_ids bigint[],
    entity_weights double precision[],
    lexemes text[],
    ranking text DEFAULT 'evidence',
    candidate_limit integer DEFAULT 100,
    similarity_weight double precision DEFAULT 0.6,
    query_entity_weight double precision DEFAULT 0.3,
    query_entity_cap double precision DEFAULT 1.5,
    subject_weight double precision DEFAULT 1.5,
    bridge_weight double precision DEFAULT 0.6,
    bridge_event_limit integer DEFAULT 20,
    bridge_event_budget integer DEFAULT 4000,
    bridge_own_subject_weight double precision DEFAULT 1.3,
    bridge_other_subject_weight double precision DEFAULT 1.0,
    bridge_weak_weight double precision DEFAULT 0.6,
    cover_limit integer DEFAULT 50,
    cover_pick_limit integer DEFAULT 50,
    cover_weight double precision DEFAULT 0.6,
    repeat_penalty double precision DEFAULT 0.1
)
RETURNS TABLE (
    rank integer, event_id bigint, score double precision, base double precision,
    bridge double precision, bridge_entity_id bigint, bridge_event_id bigint
)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 100
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH base AS MATERIALIZED (
        SELECT b.event_id, b.base
        FROM sag.event_base(
            rank_events.target, rank_events.event_ids, rank_events.relevances,
            rank_events.entity_ids, rank_events.entity_weights, rank_events.similarity_weight,
            rank_events.query_entity_weight, rank_events.query_entity_cap,
            rank_events.subject_weight
        ) AS b
        WHERE rank_events.ranking = 'evidence'
    ),
    bridge AS MATERIALIZED (
        SELECT g.*
        FROM (SELECT array_agg(b.event_id) AS ids, array_agg(b.base) AS bases FROM base AS b) AS p
        CROSS JOIN LATERAL sag.bridge_events(
            rank_events.target, rank_events.event_total, p.ids, p.bases, rank_events.entity_ids,
            rank_events.bridge_event_limit, rank_events.bridge_event_budget,
            rank_events.bridge_own_subject_weight,
            rank_events.bridge_other_subject_weight, rank_events.bridge_weak_weight
        ) AS g
    ),
    scored AS MATERIALIZED (
        SELECT s.*, row_number() OVER (ORDER BY s.score DESC NULLS LAST, s.event_id ASC) AS place
        FROM (
            SELECT
                b.event_id,
                b.base + rank_events.bridge_weight * coalesce(g.bridge, 0) AS score,
                b.base, g.bridge, g.entity_id AS bridge_entity_id,
                g.from_event_id AS bridge_event_id
            FROM base AS b
            LEFT JOIN bridge AS g ON g.event_id = b.event_id
            UNION ALL
            SELECT p.event_id, p.number, p.number, NULL, NULL, NULL
            FROM sag.unpack_events(rank_events.event_ids, rank_events.relevances) AS p
            WHERE rank_events.ranking = 'similarity'
        ) AS s
        ORDER BY s.score DESC NULLS LAST, s.event_id ASC
        LIMIT rank_events.candidate_limit
    ),
    covered AS MATERIALIZED (
        SELECT v.event_id, v.pick
        FROM (
            SELECT
                array_agg(s.event_id ORDER BY s.place) AS ids,
                array_agg(s.score ORDER BY s.place) AS scores
            FROM scored AS s
            WHERE s.place <= rank_events.cover_limit AND rank_events.ranking = 'evidence'
        ) AS p
        CROSS JOIN LATERAL sag.cover_question(
            rank_events.target, p.ids, p.scores, rank_events.lexemes,
            rank_events.cover_pick_limit, rank_events.cover_weight, rank_events.repeat_penalty
        ) AS v
    )
    SELECT
        row_number() OVER (ORDER BY v.pick ASC NULLS LAST, s.place ASC)::integer,
        s.event_id, s.score, s.base, s.bridge, s.bridge_entity_id, s.bridge_event_id
    FROM scored AS s
    LEFT JOIN covered AS v ON v.event_id = s.event_id
    ORDER BY 1;
END
$$;
COMMENT ON FUNCTION sag.rank_events(
    bigint, bigint, bigint[], double precision[], bigint[], double precision[], text[], text,
    integer, double precision, double precision, double precision, double precision,
    double precision, integer, integer, double precision, double precision, double precision,
    integer, integer, double precision, double precision
) IS
'Ê: the best candidates. Ranking "similarity" is the paper''s coarse rank; "evidence" adds the '
'question''s entities and bridges, and orders the top so that it covers the question.';
