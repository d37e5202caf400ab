CREATE OR REPLACE FUNCTION sag.cover_question(
    target bigint,
    event_ids bigint[],
    scores double precision[],
    lexemes text[],
    pick_limit integer,
    cover_weight double precision DEFAULT 0.6,
    repeat_penalty double precision DEFAULT 0.1
)
RETURNS TABLE (event_id bigint, pick integer)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 50
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE candidate AS MATERIALIZED (
        SELECT
            c.event_id, c.score, c.no::integer,
            ARRAY(
                SELECT w.no::integer
                FROM unnest(cover_question.lexemes) WITH ORDINALITY AS w (lexeme, no)
                WHERE w.lexeme = ANY(tsvector_to_array(e.lexemes))
            ) AS words
        FROM unnest(cover_question.event_ids, cover_question.scores)
            WITH ORDINALITY AS c (event_id, score, no)
        INNER JOIN sag.event AS e
            ON e.collection_id = cover_question.target AND e.event_id = c.event_id
    ),
    word AS MATERIALIZED (
        SELECT
            x.no, ln(1 + (SELECT count(*) FROM candidate)::double precision / count(*)) AS idf
        FROM candidate AS c
        CROSS JOIN LATERAL unnest(c.words) AS x (no)
        GROUP BY x.no
    ),
    about AS MATERIALIZED (
        SELECT c.no, l.entity_id
        FROM candidate AS c
        -- The LIMIT, which nothing reaches, makes this a probe of the index for each candidate.
        CROSS JOIN LATERAL (
            SELECT x.entity_id, x.is_subject
            FROM sag.event_entity AS x
            WHERE x.collection_id = cover_question.target AND x.event_id = c.event_id
            LIMIT 10000
        ) AS l
        WHERE l.is_subject
    ),
    profile AS MATERIALIZED (
        SELECT
            c.no, c.score, c.words,
            -- The gain of each word, in the order of words.
            ARRAY(
                SELECT cover_question.cover_weight * w.idf / (SELECT sum(idf) FROM word)
                FROM unnest(c.words) WITH ORDINALITY AS x (no, place)
                INNER JOIN word AS w ON w.no = x.no
                ORDER BY x.place
            ) AS gains,
            ARRAY(
                SELECT DISTINCT other.no
                FROM about AS own
                INNER JOIN about AS other ON other.entity_id = own.entity_id AND other.no <> own.no
                WHERE own.no = c.no
            ) AS alike
        FROM candidate AS c
    ),
    walk AS (
        SELECT 0 AS pick, NULL::integer AS no, '{}'::integer[] AS picked, '{}'::integer[] AS covered
        UNION ALL
        SELECT w.pick + 1, best.no, w.picked || best.no, w.covered || best.words
        FROM walk AS w
        CROSS JOIN LATERAL (
            SELECT p.no, p.words
            FROM profile AS p
            WHERE p.no <> ALL(w.picked)
            ORDER BY
                p.score
                + coalesce((
                    SELECT sum(g.gain) FROM unnest(p.words, p.gains) AS g (no, gain)
                    WHERE g.no <> ALL(w.covered)
                ), 0)
                - CASE WHEN p.alike = '{}' THEN 0 ELSE cover_question.repeat_penalty * (
                    SELECT count(*) FROM unnest(p.alike) AS a (no) WHERE a.no = ANY(w.picked)
                ) END DESC,
                p.no ASC
            LIMIT 1
        ) AS best
        WHERE w.pick < cover_question.pick_limit
    )
    SELECT c.event_id, w.pick
    FROM walk AS w
    INNER JOIN candidate AS c ON c.no = w.no;
END
$$;
COMMENT ON FUNCTION sag.cover_question(
    bigint, bigint[], double precision[], text[], integer, double precision, double precision
) IS
'Takes events one by one, so that together they cover the words of the question: score, plus the '
'idf of words not covered yet, minus a penalty for each event already taken on the same subject.';
