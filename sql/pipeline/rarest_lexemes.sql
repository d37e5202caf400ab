CREATE OR REPLACE FUNCTION sag.rarest_lexemes(
    queries tsquery[], event_counts bigint[], event_budget integer
)
RETURNS TABLE (query tsquery)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE ROWS 10
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT q.query
    FROM (
        SELECT
            u.query,
            sag.take_within(u.event_count, rarest_lexemes.event_budget) OVER rarest_first
            AS is_taken,
            row_number() OVER rarest_first AS no
        FROM unnest(rarest_lexemes.queries, rarest_lexemes.event_counts) AS u (query, event_count)
        WHERE u.event_count > 0
        WINDOW rarest_first AS (
            ORDER BY u.event_count, u.query::text COLLATE "C" ROWS UNBOUNDED PRECEDING
        )
    ) AS q
    -- A question of frequent words alone still gets an answer.
    WHERE q.is_taken OR q.no = 1;
END
$$;
COMMENT ON FUNCTION sag.rarest_lexemes(tsquery[], bigint[], integer) IS
'Those of a question''s lexemes that lead to at most a budget of events together, rarest first.';
