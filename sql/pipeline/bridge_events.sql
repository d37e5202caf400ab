CREATE OR REPLACE FUNCTION sag.bridge_events(
    target bigint,
    event_total bigint,
    event_ids bigint[],
    bases double precision[],
    entity_ids bigint[],
    bridge_event_limit integer DEFAULT 20,
    bridge_event_budget integer DEFAULT 4000,
    bridge_own_subject_weight double precision DEFAULT 1.3,
    bridge_other_subject_weight double precision DEFAULT 1.0,
    bridge_weak_weight double precision DEFAULT 0.6
)
RETURNS TABLE (
    event_id bigint, bridge double precision, entity_id bigint, from_event_id bigint
)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 1000
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH pool AS MATERIALIZED (
        SELECT p.event_id, p.number AS base
        FROM sag.unpack_events(bridge_events.event_ids, bridge_events.bases) AS p
    ),
    strongest AS MATERIALIZED (
        SELECT p.event_id, p.base FROM pool AS p
        ORDER BY p.base DESC, p.event_id ASC
        LIMIT bridge_events.bridge_event_limit
    ),
    reached AS MATERIALIZED (
        SELECT
            s.event_id, l.entity_id, l.is_subject, n.event_count,
            s.base * ln(1 + bridge_events.event_total::double precision / n.event_count)
            / ln(1 + bridge_events.event_total::double precision) AS weight
        FROM strongest AS s
        -- The LIMITs, which nothing reaches, make these joins probes of an index: with little known
        -- of a collection the planner may prefer to read all of it once.
        CROSS JOIN LATERAL (
            SELECT x.entity_id, x.is_subject
            FROM sag.event_entity AS x
            WHERE x.collection_id = bridge_events.target AND x.event_id = s.event_id
            LIMIT 10000
        ) AS l
        CROSS JOIN LATERAL (
            SELECT x.event_count
            FROM sag.entity AS x
            WHERE x.collection_id = bridge_events.target AND x.entity_id = l.entity_id
            LIMIT 1
        ) AS n
        WHERE n.event_count > 1 AND l.entity_id <> ALL(bridge_events.entity_ids)
    ),
    -- Of the events at an entity two can be the other end: the best, and for the best itself the
    -- second. Which they are depends on whether the near end is about the entity.
    pier AS MATERIALIZED (
        SELECT t.*
        FROM (
            SELECT
                r.entity_id,
                array_agg(r.event_id ORDER BY r.weight DESC, r.event_id ASC) AS own_ends,
                array_agg(r.weight ORDER BY r.weight DESC, r.event_id ASC) AS own_weights,
                array_agg(r.event_id ORDER BY r.far_weight DESC, r.event_id ASC) AS far_ends,
                array_agg(r.far_weight ORDER BY r.far_weight DESC, r.event_id ASC) AS far_weights,
                -- What the join to the events reads is bounded by the budget and not by hubs,
                -- whose bridges are worth least.
                sag.take_within(r.event_count, bridge_events.bridge_event_budget) OVER (
                    ORDER BY max(r.weight) DESC, r.entity_id ASC ROWS UNBOUNDED PRECEDING
                ) AS is_taken
            FROM (
                SELECT
                    x.entity_id, x.event_id, x.event_count, x.weight,
                    x.weight * CASE WHEN x.is_subject THEN bridge_events.bridge_other_subject_weight
                        ELSE bridge_events.bridge_weak_weight END AS far_weight
                FROM reached AS x
            ) AS r
            GROUP BY r.entity_id, r.event_count
        ) AS t
        WHERE t.is_taken
    ),
    bridged AS (
        SELECT
            y.event_id,
            i.entity_id,
            CASE WHEN y.is_subject
                THEN bridge_events.bridge_own_subject_weight
                    * CASE
                        WHEN i.own_ends[1] <> y.event_id THEN i.own_weights[1] ELSE i.own_weights[2]
                    END
                WHEN i.far_ends[1] <> y.event_id THEN i.far_weights[1]
                ELSE i.far_weights[2]
            END AS bridge,
            CASE WHEN y.is_subject
                THEN CASE WHEN i.own_ends[1] <> y.event_id THEN i.own_ends[1] ELSE i.own_ends[2] END
                WHEN i.far_ends[1] <> y.event_id THEN i.far_ends[1]
                ELSE i.far_ends[2]
            END AS from_event_id
        FROM pier AS i
        CROSS JOIN LATERAL (
            SELECT x.event_id, x.is_subject
            FROM sag.event_entity AS x
            WHERE x.collection_id = bridge_events.target AND x.entity_id = i.entity_id
            LIMIT bridge_events.bridge_event_budget
        ) AS y
    )
    SELECT DISTINCT ON (g.event_id) g.event_id, g.bridge, g.entity_id, g.from_event_id
    FROM bridged AS g
    INNER JOIN pool AS p ON p.event_id = g.event_id
    WHERE g.bridge IS NOT NULL
    ORDER BY g.event_id, g.bridge DESC, g.entity_id;
END
$$;
COMMENT ON FUNCTION sag.bridge_events(
    bigint, bigint, bigint[], double precision[], bigint[], integer, integer, double precision,
    double precision, double precision
) IS
'bridge(e): the strongest other event that shares with e an entity which the question does not '
'name. Worth more where e, or else the other event, is about that entity.';
