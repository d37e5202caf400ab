CREATE OR REPLACE FUNCTION public.sag_search(
    question text,
    collection text DEFAULT 'default',
    method text DEFAULT NULL,
    embedding halfvec DEFAULT NULL,
    filter jsonpath DEFAULT NULL,
    result_limit integer DEFAULT 10
)
RETURNS TABLE (
    rank integer, chunk_id bigint, source text, title text, content text, score double precision
)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE ROWS 10
SET search_path FROM CURRENT
SET jit = off
SET random_page_cost = 1.1
AS $$
#variable_conflict use_column
DECLARE
    target constant bigint := sag.collection_key(sag_search.collection);
    -- Deep enough for the fusion to see what is middling in both lists.
    depth constant integer := greatest(100, sag_search.result_limit);
    how constant text := coalesce(
        sag_search.method, CASE WHEN sag_search.embedding IS NULL THEN 'lexical' ELSE 'hybrid' END
    );
    configuration regconfig;
    event_total bigint;
    average_length double precision;
    read_all boolean;
    settings text[];
    queries tsquery[];
    weights double precision[];
    counts bigint[];
BEGIN
    IF how NOT IN ('vector', 'lexical', 'hybrid') THEN
        RAISE EXCEPTION 'search method % does not exist', quote_literal(how)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Give vector, lexical or hybrid.';
    END IF;
    IF how <> 'lexical' THEN
        IF sag_search.embedding IS NULL THEN
            RAISE EXCEPTION 'search method % needs an embedding', how
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give the question''s embedding, or take method lexical.';
        END IF;
        PERFORM sag.check_embedding(sag_search.embedding);
    END IF;
    IF coalesce(sag_search.result_limit, -1) NOT BETWEEN 0 AND 1000 THEN
        RAISE EXCEPTION 'result_limit cannot be %', coalesce(sag_search.result_limit::text, 'NULL')
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a number from 0 to 1000.';
    END IF;
    SELECT
        c.text_search_configuration::regconfig, s.event_total,
        s.lexeme_total::double precision / greatest(s.event_total, 1)
    INTO configuration, event_total, average_length
    FROM sag.collection AS c
    INNER JOIN sag.collection_statistic AS s ON s.collection_id = c.collection_id
    WHERE c.collection_id = target;
    SELECT array_agg(w.query), array_agg(w.weight), array_agg(w.event_count)
    INTO queries, weights, counts
    FROM sag.weigh_lexemes(
        target, sag.question_lexemes(configuration, sag_search.question), event_total
    ) AS w
    WHERE w.event_count > 0 AND how <> 'vector';
    read_all := sag.reads_all(target, event_total, sag_search.filter, depth);
    settings := ARRAY[
        current_setting('hnsw.ef_search', TRUE), current_setting('hnsw.iterative_scan', TRUE)
    ];
    PERFORM set_config('hnsw.ef_search', least(2 * depth, 1000)::text, TRUE),
        set_config('hnsw.iterative_scan', 'relaxed_order', TRUE);
    RETURN QUERY
    WITH found AS (
        SELECT v.event_id, v.similarity AS score, 'vector' AS method
        FROM sag.search_vectors(
            target, sag_search.embedding, sag_search.filter,
            read_all, NULL,
            CASE WHEN how = 'lexical' THEN 0 ELSE depth END
        ) AS v
        UNION ALL
        SELECT x.event_id, x.score, 'lexical'
        FROM sag.search_lexemes(
            target, queries, weights, counts, average_length, sag_search.filter, 2000,
            CASE WHEN how = 'vector' THEN 0 ELSE depth END, read_all
        ) AS x
    ),
    placed AS (
        SELECT
            f.event_id, f.score,
            row_number() OVER (PARTITION BY f.method ORDER BY f.score DESC, f.event_id ASC) AS place
        FROM found AS f
    ),
    fused AS (
        SELECT
            p.event_id,
            -- Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009), k = 60.
            CASE WHEN how = 'hybrid' THEN sum(1.0 / (60 + p.place))::double precision
                ELSE max(p.score) END AS score
        FROM placed AS p
        GROUP BY p.event_id
        ORDER BY 2 DESC, 1 ASC
        LIMIT sag_search.result_limit
    )
    SELECT
        row_number() OVER (ORDER BY f.score DESC, f.event_id ASC)::integer,
        c.chunk_id, d.source, d.title, c.content, f.score
    FROM fused AS f
    INNER JOIN sag.event AS e ON e.collection_id = target AND e.event_id = f.event_id
    INNER JOIN sag.chunk AS c ON c.collection_id = target AND c.chunk_id = e.chunk_id
    INNER JOIN sag.document AS d ON d.collection_id = target AND d.document_id = c.document_id
    ORDER BY 1;
    PERFORM set_config('hnsw.ef_search', coalesce(nullif(settings[1], ''), '40'), TRUE),
        set_config('hnsw.iterative_scan', coalesce(nullif(settings[2], ''), 'off'), TRUE);
END
$$;
COMMENT ON FUNCTION public.sag_search(text, text, text, halfvec, jsonpath, integer) IS
'Plain search to compare with: method vector, lexical, or hybrid, which is both by reciprocal rank '
'fusion; by default hybrid with an embedding and lexical without.';
