CREATE OR REPLACE FUNCTION sag.question_entities(
    target bigint, question text, event_limit bigint
)
RETURNS TABLE (name text, entity_ids bigint[])
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 5
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE token AS MATERIALIZED (
        SELECT
            (sag.fold_tokens(q.beginning))[1:256] AS list,
            -- Here once: splitting a long question for each name in it takes a minute.
            sag.split_cjk(q.beginning) <> q.beginning AS has_cjk
        FROM (SELECT left(question_entities.question, 10000) AS beginning) AS q
    ),
    ngram AS MATERIALIZED (
        SELECT s.start, n.length, sag.join_tokens(t.list[s.start:s.start + n.length - 1]) AS name
        FROM token AS t
        CROSS JOIN LATERAL generate_series(1, cardinality(t.list)) AS s (start)
        CROSS JOIN LATERAL generate_series(1, least(12, cardinality(t.list) - s.start + 1))
            AS n (length)
    ),
    named AS (
        SELECT g.start, g.length, g.name, n.entity_id
        FROM ngram AS g
        -- A probe of the index for each n-gram: a hash over all entities would grow with the
        -- corpus. The LIMIT keeps the planner from it.
        CROSS JOIN LATERAL (
            SELECT x.entity_id, x.event_count FROM sag.entity AS x
            WHERE x.collection_id = question_entities.target AND x.normalized_name = g.name
            LIMIT 1
        ) AS n
        WHERE n.event_count BETWEEN 1 AND question_entities.event_limit
        UNION
        SELECT g.start, g.length, g.name, a.entity_id
        FROM ngram AS g
        CROSS JOIN LATERAL (
            SELECT x.entity_id FROM sag.entity_alias AS x
            WHERE x.collection_id = question_entities.target AND x.normalized_name = g.name
            LIMIT 20
        ) AS a
        CROSS JOIN LATERAL (
            SELECT x.event_count FROM sag.entity AS x
            WHERE x.collection_id = question_entities.target AND x.entity_id = a.entity_id
            LIMIT 1
        ) AS n
        WHERE n.event_count BETWEEN 1 AND question_entities.event_limit
    ),
    longest AS MATERIALIZED (
        SELECT DISTINCT ON (m.start)
            m.start, m.length, m.name, array_agg(m.entity_id ORDER BY m.entity_id) AS entity_ids
        FROM named AS m
        -- A short word that stands alone is more often a word than a name, but among Chinese,
        -- Japanese or Korean characters a Latin one is a term (CTO).
        WHERE m.length > 1 OR char_length(m.name) > 3
            OR (SELECT t.has_cjk FROM token AS t)
        GROUP BY m.start, m.length, m.name
        ORDER BY m.start, m.length DESC
    ),
    -- From the left, each match consumes its words.
    walk AS (
        SELECT * FROM (SELECT * FROM longest AS m ORDER BY m.start LIMIT 1) AS first_match
        UNION ALL
        SELECT following.*
        FROM walk AS w
        CROSS JOIN LATERAL (
            SELECT * FROM longest AS m WHERE m.start >= w.start + w.length ORDER BY m.start LIMIT 1
        ) AS following
    )
    SELECT DISTINCT ON (w.name) w.name, w.entity_ids FROM walk AS w ORDER BY w.name, w.start;
END
$$;
COMMENT ON FUNCTION sag.question_entities(bigint, text, bigint) IS
'U_q as SQL reads it: the longest runs of the question''s words, from the left, that name an '
'entity or an alias with at most event_limit events.';
