CREATE OR REPLACE FUNCTION sag.weigh_lexemes(
    target bigint, lexemes text[], event_total bigint, event_budget integer DEFAULT 2000
)
RETURNS TABLE (lexeme text, query tsquery, event_count bigint, weight double precision)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 10
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    -- ANALYZE has counted the frequent lexemes already; a rare one is quickly counted exactly.
    WITH statistic AS MATERIALIZED (
        SELECT s.most_common_elems::text::text[] AS lexemes, s.most_common_elem_freqs AS frequencies
        FROM pg_stats AS s
        WHERE s.schemaname = 'sag' AND s.tablename = 'event' AND s.attname = 'lexemes'
    ),
    common AS (
        SELECT c.lexeme, c.frequency
        FROM statistic AS s
        CROSS JOIN LATERAL unnest(s.lexemes, s.frequencies) AS c (lexeme, frequency)
        WHERE c.lexeme = ANY(weigh_lexemes.lexemes)
    )
    SELECT
        w.lexeme, w.query, c.event_count,
        CASE WHEN c.event_count > 0
            THEN ln(1 + weigh_lexemes.event_total::double precision / c.event_count)
            ELSE 0
        END
    FROM (
        SELECT x.lexeme, sag.lexeme_query(x.lexeme) AS query
        FROM unnest(weigh_lexemes.lexemes) AS x (lexeme)
    ) AS w
    CROSS JOIN LATERAL (
        SELECT coalesce(
            (
                SELECT greatest(1, round(f.frequency * weigh_lexemes.event_total))::bigint
                FROM common AS f
                WHERE f.lexeme = w.lexeme
                    AND f.frequency * weigh_lexemes.event_total > weigh_lexemes.event_budget
            ),
            (
                SELECT nullif(count(*), 0) FROM (
                    SELECT FROM sag.event AS e
                    WHERE e.collection_id = weigh_lexemes.target AND e.lexemes @@ w.query
                    LIMIT weigh_lexemes.event_budget + 1
                ) AS counted
            ),
            -- A statement need not have every word of its chunk.
            (
                SELECT count(*) FROM (
                    SELECT FROM sag.chunk AS c
                    WHERE c.collection_id = weigh_lexemes.target AND c.lexemes @@ w.query
                    LIMIT weigh_lexemes.event_budget + 1
                ) AS counted
            )
        ) AS event_count
    ) AS c;
END
$$;
COMMENT ON FUNCTION sag.weigh_lexemes(bigint, text[], bigint, integer) IS
'How many events, or else chunks, have each lexeme, and its idf: ln(1 + events / events with it). '
'Frequent lexemes are estimated from the statistics of ANALYZE, others are counted up to the '
'budget.';
