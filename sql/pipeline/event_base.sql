CREATE OR REPLACE FUNCTION sag.event_base(
    target bigint,
    event_ids bigint[],
    relevances double precision[],
    entity_ids bigint[],
    entity_weights double precision[],
    similarity_weight double precision DEFAULT 0.6,
    query_entity_weight double precision DEFAULT 0.3,
    query_entity_cap double precision DEFAULT 1.5,
    subject_weight double precision DEFAULT 1.5
)
RETURNS TABLE (
    event_id bigint, base double precision, similarity_part double precision,
    entity_part double precision
)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 1000
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH pool AS MATERIALIZED (
        SELECT p.event_id, p.number AS relevance
        FROM sag.unpack_events(event_base.event_ids, event_base.relevances) AS p
    ),
    scale AS (
        SELECT
            percentile_cont(0.05) WITHIN GROUP (ORDER BY p.relevance) AS low,
            max(p.relevance) AS high
        FROM pool AS p
    ),
    -- From the entities to their events: the pool is mostly larger than what they have. Of a hub,
    -- which only the caller can name, more is not read.
    carried AS (
        SELECT
            l.event_id,
            sum(
                u.weight * CASE WHEN l.is_subject THEN event_base.subject_weight ELSE 1 END
            ) AS weight
        FROM unnest(event_base.entity_ids, event_base.entity_weights) AS u (entity_id, weight)
        CROSS JOIN LATERAL (
            SELECT x.event_id, x.is_subject
            FROM sag.event_entity AS x
            WHERE x.collection_id = event_base.target AND x.entity_id = u.entity_id
            LIMIT 100000
        ) AS l
        GROUP BY l.event_id
    )
    SELECT
        p.event_id,
        s.value + e.value,
        s.value,
        e.value
    FROM pool AS p
    CROSS JOIN scale
    LEFT JOIN carried AS c ON c.event_id = p.event_id
    CROSS JOIN LATERAL (
        SELECT coalesce(
            event_base.similarity_weight
            * (p.relevance - scale.low) / nullif(scale.high - scale.low, 0),
            0
        ) AS value
    ) AS s
    CROSS JOIN LATERAL (
        SELECT event_base.query_entity_weight
            * least(event_base.query_entity_cap, coalesce(c.weight, 0)) AS value
    ) AS e;
END
$$;
COMMENT ON FUNCTION sag.event_base(
    bigint, bigint[], double precision[], bigint[], double precision[], double precision,
    double precision, double precision, double precision
) IS
'base(e): the relevance rescaled within the given events (5th percentile to maximum), plus the '
'linked entities that the event carries, more for those it is about.';
