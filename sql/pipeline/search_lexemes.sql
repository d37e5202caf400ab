CREATE OR REPLACE FUNCTION sag.search_lexemes(
    target bigint,
    queries tsquery[],
    weights double precision[],
    event_counts bigint[],
    average_length double precision,
    filter jsonpath DEFAULT NULL,
    event_budget integer DEFAULT 2000,
    result_limit integer DEFAULT 60,
    read_all boolean DEFAULT FALSE,
    missing_only boolean DEFAULT FALSE
)
RETURNS TABLE (event_id bigint, score double precision)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 60
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH anyof AS (
        SELECT string_agg(r.query::text, ' | ')::tsquery AS query FROM sag.rarest_lexemes(
            search_lexemes.queries, search_lexemes.event_counts, search_lexemes.event_budget
        ) AS r
    )
    SELECT s.event_id, s.score
    FROM (
        SELECT
            e.event_id,
            sag.lexical_score(
                e.lexemes, e.lexeme_count, search_lexemes.queries, search_lexemes.weights,
                search_lexemes.average_length
            ) AS score
        FROM (
            (
                SELECT x.event_id, x.lexemes, x.lexeme_count
                FROM sag.event AS x
                WHERE NOT search_lexemes.read_all
                    AND x.collection_id = search_lexemes.target
                    AND x.lexemes @@ (SELECT a.query FROM anyof AS a)
                    AND (NOT search_lexemes.missing_only OR x.embedding IS NULL)
                    AND (
                        search_lexemes.filter IS NULL
                        OR x.document_id IN (
                            SELECT d.document_id FROM sag.document AS d
                            WHERE d.collection_id = search_lexemes.target
                                AND d.metadata @@ search_lexemes.filter
                        )
                    )
                LIMIT search_lexemes.event_budget
            )
            UNION ALL
            -- Where few documents are in question they are read, and every lexeme counts: the
            -- budget goes by the counts of the whole collection, so that a rare lexeme which the
            -- filter excludes would shut out a frequent one which it admits.
            SELECT y.event_id, y.lexemes, y.lexeme_count
            FROM sag.document AS d
            CROSS JOIN LATERAL (
                SELECT x.event_id, x.lexemes, x.lexeme_count
                FROM sag.event AS x
                WHERE x.collection_id = search_lexemes.target AND x.document_id = d.document_id
                    AND x.lexemes @@ ANY(search_lexemes.queries)
                    AND (NOT search_lexemes.missing_only OR x.embedding IS NULL)
                LIMIT 1000000
            ) AS y
            WHERE search_lexemes.read_all AND search_lexemes.result_limit > 0
                AND d.collection_id = search_lexemes.target
                AND (search_lexemes.filter IS NULL OR d.metadata @@ search_lexemes.filter)
        ) AS e
    ) AS s
    ORDER BY s.score DESC, s.event_id ASC
    LIMIT search_lexemes.result_limit;
END
$$;
COMMENT ON FUNCTION sag.search_lexemes(
    bigint, tsquery[], double precision[], bigint[], double precision, jsonpath, integer, integer,
    boolean, boolean
) IS
'The best events by lexical score among those of the question''s rarest lexemes, as many lexemes '
'as the budget of events allows; with read_all, among all events that have any of them; '
'with missing_only, among those without an embedding.';
