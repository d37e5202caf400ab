CREATE OR REPLACE FUNCTION sag.retrieve_stages(
    question text,
    collection text DEFAULT 'default',
    embedding halfvec DEFAULT NULL,
    entities text[] DEFAULT NULL,
    entity_embeddings halfvec[] DEFAULT NULL,
    filter jsonpath DEFAULT NULL,
    options jsonb DEFAULT '{}',
    with_stages boolean DEFAULT TRUE
)
RETURNS TABLE (
    stage text, rank integer, method text, name text, entity_id bigint, event_id bigint,
    chunk_id bigint, hop integer, score double precision, entity_ids bigint[],
    elapsed_ms double precision, mode text
)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE ROWS 10
SET search_path FROM CURRENT
-- Every stage is made of index probes; the default takes the disks of 2000 for granted and reads
-- whole tables instead.
SET jit = off
SET random_page_cost = 1.1
-- A custom plan knows the collection, and of one that ANALYZE has not seen yet it expects one row;
-- a generic plan expects an average one, and costs no planning.
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    target constant bigint := sag.collection_key(retrieve_stages.collection);
    -- Of a blank one no model is asked.
    has_words constant boolean := coalesce(retrieve_stages.question, '') ~ '\S';
    started timestamptz := clock_timestamp();
    q_embedding halfvec := retrieve_stages.embedding;
    q_reasons text[] := '{}';
    q_mode text;
    -- What is left of gateway_timeout.
    gateway_ms integer;
    has_gateway boolean := FALSE;
    asks_embedding boolean;
    asks_entities boolean;
    asks_choice boolean;
    is_asked boolean := FALSE;
    understood record;
    model_names text[];
    model_embeddings halfvec[];
    understand_failure text;
    chosen record;
    choose_method text := 'rank';
    choose_failure text;
    p record;
    configuration regconfig;
    event_total bigint;
    average_length double precision;
    embedding_total bigint;
    statement_total bigint;
    read_all boolean;
    settings text[];
    lexemes text[];
    queries tsquery[];
    lexeme_weights double precision[];
    lexeme_counts bigint[];
    names text[];
    origins text[];
    name_embeddings halfvec[];
    link_names text[];
    link_methods text[];
    link_similarities double precision[];
    link_ids bigint[];
    link_counts bigint[];
    link_weights double precision[];
    direct_ids bigint[];
    direct_relevances double precision[];
    pool_ids bigint[];
    pool_relevances double precision[];
    pool_hops integer[];
    pool_entity_ids bigint[];
    pool_from_ids bigint[];
    pool_methods text[];
    ranked_ids bigint[];
    ranked_scores double precision[];
    ranked_bridge_entity_ids bigint[];
    chosen_ids bigint[];
    chunk_ids bigint[];
    chunk_relevances double precision[];
    output_ids bigint[];
    output_event_ids bigint[];
    output_methods text[];
BEGIN
    IF coalesce(btrim(retrieve_stages.question), '') = '' AND q_embedding IS NULL THEN
        RAISE EXCEPTION 'the question is empty'
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Give a question in words, or an embedding.';
    END IF;
    SELECT
        c.text_search_configuration::regconfig, s.event_total, s.embedding_total,
        s.statement_total,
        s.lexeme_total::double precision / greatest(s.event_total, 1)
    INTO configuration, event_total, embedding_total, statement_total, average_length
    FROM sag.collection AS c
    INNER JOIN sag.collection_statistic AS s ON s.collection_id = c.collection_id
    WHERE c.collection_id = target;
    SELECT * INTO p
    FROM jsonb_to_record(sag.resolve_parameters(target, retrieve_stages.options)) AS x (
        bridge_event_budget integer, bridge_event_limit integer,
        bridge_other_subject_weight double precision, bridge_own_subject_weight double precision,
        bridge_weak_weight double precision, bridge_weight double precision,
        candidate_limit integer, choose text, choose_candidate_limit integer,
        choose_event_limit integer, cover_limit integer, cover_weight double precision,
        direct_chunk_limit integer, ef_search integer,
        entity_similarity double precision, event_limit integer,
        event_similarity double precision, frontier_event_budget integer, frontier_limit integer,
        frontier_seed_limit integer, gateway_timeout integer, hops integer, link_limit integer,
        output_limit integer,
        query_entity_cap double precision, query_entity_share double precision,
        query_entity_weight double precision, ranking text, repeat_penalty double precision,
        seed_entity_event_limit integer, seed_event_limit integer,
        similarity_weight double precision, strict boolean, subject_weight double precision,
        trigram_similarity double precision, understand text
    );
    IF q_embedding IS NOT NULL THEN
        PERFORM sag.check_embedding(q_embedding);
    END IF;
    PERFORM sag.check_embedding(g.embedding)
    FROM unnest(retrieve_stages.entity_embeddings) AS g (embedding)
    WHERE g.embedding IS NOT NULL;
    gateway_ms := p.gateway_timeout;
    asks_embedding := q_embedding IS NULL AND embedding_total > 0 AND p.understand <> 'sql'
        AND has_words;
    asks_entities := p.understand = 'model' AND has_words;
    asks_choice := p.choose = 'model' AND has_words;
    IF q_embedding IS NOT NULL AND embedding_total = 0 AND event_total > 0 THEN
        -- Unquoted it is a keyword of PL/pgSQL and no field.
        IF p."strict" THEN
            RAISE EXCEPTION 'collection % holds no embeddings',
                quote_literal(retrieve_stages.collection)
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Ingest it with an embedding model, or call without embedding.';
        END IF;
        RAISE WARNING 'collection % holds no embeddings; its lexemes are searched',
            quote_literal(retrieve_stages.collection);
        q_embedding := NULL;
        q_reasons := '{collection without embeddings}';
    END IF;

    -- The model's part of understand, where something is asked of it.
    IF asks_embedding OR asks_entities OR asks_choice THEN
        has_gateway := sag.gateway_installed();
    END IF;
    IF has_gateway AND (asks_embedding OR asks_entities) THEN
        is_asked := TRUE;
        SELECT * INTO understood FROM sag.model_understand(
            retrieve_stages.question, asks_embedding, asks_entities, p."strict", gateway_ms
        );
        q_embedding := coalesce(q_embedding, understood.embedding);
        q_reasons := q_reasons || understood.reasons;
        model_names := understood.names;
        model_embeddings := understood.name_embeddings;
        understand_failure := understood.failure;
        has_gateway := understood.is_reachable;
        gateway_ms := gateway_ms - sag.elapsed_ms(started);
    ELSIF asks_embedding OR asks_entities THEN
        q_reasons := q_reasons || 'no gateway'::text;
        understand_failure := 'no model gateway is installed';
        -- By default this is retrieval without a model and no fault. One that was asked for is.
        IF p."strict" OR p.understand = 'model' THEN
            PERFORM sag.fall_back(
                'no model reads the question', p."strict", '55000',
                format('this database has no model gateway that %s may use', current_user), NULL,
                'Its owner runs sag-pg gateway install, and readers are members of sag_reader. Or '
                'give an embedding, or set understand to "sql".'
            );
        END IF;
    END IF;
    q_mode := sag.describe_mode(
        q_embedding IS NOT NULL, embedding_total >= event_total, q_reasons, FALSE
    );
    read_all := sag.reads_all(target, event_total, retrieve_stages.filter, p.seed_event_limit);
    -- Not as SET clauses of the function: without superuser those need pgvector loaded before the
    -- function is created. Put back at the end, for the caller's transaction goes on.
    settings := ARRAY[
        current_setting('hnsw.ef_search', TRUE), current_setting('hnsw.iterative_scan', TRUE),
        current_setting('pg_trgm.similarity_threshold', TRUE)
    ];
    PERFORM set_config('hnsw.ef_search', greatest(
            p.ef_search, p.seed_event_limit, p.seed_entity_event_limit, p.direct_chunk_limit
        )::text, TRUE),
        set_config('hnsw.iterative_scan', 'relaxed_order', TRUE),
        set_config('pg_trgm.similarity_threshold', p.trigram_similarity::text, TRUE);

    -- understand: q to U_q
    lexemes := sag.question_lexemes(configuration, retrieve_stages.question);
    IF q_embedding IS NULL OR embedding_total < event_total THEN
        SELECT
            array_agg(w.lexeme), array_agg(w.query), array_agg(w.weight), array_agg(w.event_count)
        INTO lexemes, queries, lexeme_weights, lexeme_counts
        FROM (
            SELECT x.*
            FROM sag.weigh_lexemes(target, lexemes, event_total, p.frontier_event_budget) AS x
            WHERE x.event_count > 0
            ORDER BY x.event_count, x.lexeme COLLATE "C" LIMIT 64
        ) AS w;
    END IF;
    SELECT array_agg(u.name), array_agg(u.origin), array_agg(u.embedding)
    INTO names, origins, name_embeddings
    FROM sag.understand(
        target, configuration, retrieve_stages.question,
        greatest(20, ceil(p.query_entity_share * event_total)::bigint),
        retrieve_stages.entities, retrieve_stages.entity_embeddings, model_names, model_embeddings
    ) AS u;
    IF with_stages THEN
        RETURN QUERY SELECT 'understand', 0, q_mode,
            format(
                '%s lexemes, %s entities%s',
                coalesce(cardinality(lexemes), 0), coalesce(cardinality(names), 0),
                '; ' || understand_failure
            ),
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::integer, NULL::double precision,
            NULL::bigint[], sag.elapsed_ms(started), q_mode;
        RETURN QUERY SELECT 'understand', u.no::integer, u.origin, u.name,
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::integer, NULL::double precision,
            NULL::bigint[], NULL::double precision, q_mode
        FROM unnest(names, origins) WITH ORDINALITY AS u (name, origin, no);
    END IF;

    -- link_entities: U_q to linked entities
    started := clock_timestamp();
    SELECT
        array_agg(l.name), array_agg(l.method), array_agg(l.similarity),
        coalesce(array_agg(l.entity_id), '{}'), coalesce(array_agg(l.event_count::bigint), '{}'),
        coalesce(array_agg(
            ln(1 + event_total::double precision / l.event_count)
            / ln(1 + event_total::double precision)
        ), '{}')
    INTO link_names, link_methods, link_similarities, link_ids, link_counts, link_weights
    FROM sag.link_entities(
        target, names, origins, name_embeddings, p.entity_similarity, p.trigram_similarity,
        p.link_limit
    ) AS l;
    IF with_stages THEN
        RETURN QUERY SELECT 'link_entities', 0, q_mode,
            format('%s entities', cardinality(link_ids)),
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::integer, NULL::double precision,
            NULL::bigint[], sag.elapsed_ms(started), q_mode;
        RETURN QUERY SELECT 'link_entities', u.no::integer, u.method,
            format('%s: %s', u.name, n.name), u.id, NULL::bigint, NULL::bigint, NULL::integer,
            u.similarity, NULL::bigint[], NULL::double precision, q_mode
        FROM unnest(link_names, link_methods, link_similarities, link_ids)
            WITH ORDINALITY AS u (name, method, similarity, id, no)
        INNER JOIN sag.entity AS n ON n.collection_id = target AND n.entity_id = u.id
        ORDER BY u.no;
    END IF;

    -- seed_events: E_R
    started := clock_timestamp();
    WITH found AS (
        SELECT * FROM sag.seed_events(
            target, q_embedding, queries, lexeme_weights, lexeme_counts, average_length, link_ids,
            link_counts, retrieve_stages.filter, read_all, p.event_similarity, p.seed_event_limit,
            p.seed_entity_event_limit, p.frontier_event_budget
        )
    ),
    seed AS (
        SELECT
            f.event_id, max(f.relevance) AS relevance,
            (array_agg(f.entity_id) FILTER (WHERE f.entity_id IS NOT NULL))[1] AS entity_id,
            string_agg(DISTINCT f.path, ', ') AS method,
            bool_or(f.path = 'direct') AS is_direct
        FROM found AS f
        GROUP BY f.event_id
    )
    SELECT
        coalesce(array_agg(s.event_id ORDER BY s.relevance DESC NULLS LAST, s.event_id), '{}'),
        coalesce(array_agg(s.relevance ORDER BY s.relevance DESC NULLS LAST, s.event_id), '{}'),
        array_agg(s.entity_id ORDER BY s.relevance DESC NULLS LAST, s.event_id),
        array_agg(s.method ORDER BY s.relevance DESC NULLS LAST, s.event_id),
        array_fill(0, ARRAY[count(*)::integer]),
        array_fill(NULL::bigint, ARRAY[count(*)::integer]),
        array_agg(s.event_id ORDER BY s.relevance DESC NULLS LAST, s.event_id)
        FILTER (WHERE s.is_direct),
        array_agg(s.relevance ORDER BY s.relevance DESC NULLS LAST, s.event_id)
        FILTER (WHERE s.is_direct)
    INTO pool_ids, pool_relevances, pool_entity_ids, pool_methods, pool_hops, pool_from_ids,
        direct_ids, direct_relevances
    FROM seed AS s;
    IF with_stages THEN
        RETURN QUERY SELECT 'seed_events', 0, q_mode,
            format('%s events', cardinality(pool_ids)),
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::integer, NULL::double precision,
            NULL::bigint[], sag.elapsed_ms(started), q_mode;
        RETURN QUERY SELECT 'seed_events', u.no::integer, u.method, e.title,
            u.entity_id, u.id, e.chunk_id, 0, u.relevance, NULL::bigint[],
            NULL::double precision, q_mode
        FROM unnest(pool_ids, pool_methods, pool_entity_ids, pool_relevances)
            WITH ORDINALITY AS u (id, method, entity_id, relevance, no)
        INNER JOIN sag.event AS e ON e.collection_id = target AND e.event_id = u.id
        ORDER BY u.no;
    END IF;

    IF retrieve_stages.filter IS NOT NULL AND cardinality(pool_ids) = 0 AND NOT EXISTS (
        SELECT FROM sag.document AS d
        WHERE d.collection_id = target AND d.metadata @@ retrieve_stages.filter
    ) THEN
        RAISE NOTICE 'no document of collection % passes the filter %',
            quote_literal(retrieve_stages.collection), retrieve_stages.filter
        USING HINT = 'A filter is a predicate on metadata, such as $.year >= 2020.';
    END IF;

    -- expand_events: E_E
    started := clock_timestamp();
    WITH expanded AS (
        SELECT * FROM sag.expand_events(
            target, q_embedding, queries, lexeme_weights, average_length, event_total, pool_ids,
            pool_relevances, link_ids, link_weights, retrieve_stages.filter, p.hops,
            p.frontier_seed_limit, p.frontier_limit, p.frontier_event_budget, p.similarity_weight,
            p.query_entity_weight, p.query_entity_cap, p.subject_weight
        )
    )
    SELECT
        pool_ids || coalesce(array_agg(x.event_id), '{}'),
        pool_relevances || coalesce(array_agg(x.relevance), '{}'),
        pool_entity_ids || coalesce(array_agg(x.entity_id), '{}'),
        pool_hops || coalesce(array_agg(x.hop), '{}'),
        pool_from_ids || coalesce(array_agg(x.from_event_id), '{}')
    INTO pool_ids, pool_relevances, pool_entity_ids, pool_hops, pool_from_ids
    FROM expanded AS x
    WHERE cardinality(pool_ids) > 0;
    IF with_stages THEN
        RETURN QUERY SELECT 'expand_events', 0, q_mode,
            format('%s events', coalesce((
                SELECT count(*) FROM unnest(pool_hops) AS h (hop) WHERE h.hop > 0
            ), 0)),
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::integer, NULL::double precision,
            NULL::bigint[], sag.elapsed_ms(started), q_mode;
        RETURN QUERY SELECT 'expand_events',
            row_number() OVER (ORDER BY u.hop, u.relevance DESC NULLS LAST, u.id)::integer,
            'entity', e.title, u.entity_id, u.id, e.chunk_id, u.hop, u.relevance, NULL::bigint[],
            NULL::double precision, q_mode
        FROM unnest(pool_ids, pool_entity_ids, pool_relevances, pool_hops)
            AS u (id, entity_id, relevance, hop)
        INNER JOIN sag.event AS e ON e.collection_id = target AND e.event_id = u.id
        WHERE u.hop > 0
        ORDER BY 2;
    END IF;

    -- rank_events: the candidates
    started := clock_timestamp();
    SELECT
        coalesce(array_agg(r.event_id ORDER BY r.rank), '{}'),
        coalesce(array_agg(r.score ORDER BY r.rank), '{}'),
        array_agg(r.bridge_entity_id ORDER BY r.rank)
    INTO ranked_ids, ranked_scores, ranked_bridge_entity_ids
    FROM sag.rank_events(
        target, event_total, pool_ids, pool_relevances, link_ids, link_weights, lexemes, p.ranking,
        p.candidate_limit, p.similarity_weight, p.query_entity_weight, p.query_entity_cap,
        p.subject_weight, p.bridge_weight, p.bridge_event_limit, p.bridge_event_budget,
        p.bridge_own_subject_weight, p.bridge_other_subject_weight, p.bridge_weak_weight,
        p.cover_limit, greatest(p.event_limit, p.output_limit) * 2, p.cover_weight,
        p.repeat_penalty
    ) AS r;
    IF with_stages THEN
        RETURN QUERY SELECT 'rank_events', 0, p.ranking,
            format('%s of %s events', cardinality(ranked_ids), cardinality(pool_ids)),
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::integer, NULL::double precision,
            NULL::bigint[], sag.elapsed_ms(started), q_mode;
        RETURN QUERY SELECT 'rank_events', u.no::integer, p.ranking, e.title, u.bridge_entity_id,
            u.id, e.chunk_id, x.hop, u.score, NULL::bigint[], NULL::double precision, q_mode
        FROM unnest(ranked_ids, ranked_scores, ranked_bridge_entity_ids)
            WITH ORDINALITY AS u (id, score, bridge_entity_id, no)
        INNER JOIN sag.event AS e ON e.collection_id = target AND e.event_id = u.id
        INNER JOIN unnest(pool_ids, pool_hops) AS x (id, hop) ON x.id = u.id
        ORDER BY u.no;
    END IF;

    -- choose_events: the best of them
    started := clock_timestamp();
    IF asks_choice AND least(cardinality(ranked_ids), p.choose_candidate_limit) > 1 THEN
        IF has_gateway THEN
            SELECT * INTO chosen FROM sag.model_choose(
                target, retrieve_stages.question, ranked_ids[:p.choose_candidate_limit],
                p.choose_event_limit, p."strict", gateway_ms
            );
            chosen_ids := chosen.event_ids;
            choose_failure := chosen.failure;
        ELSIF is_asked THEN
            choose_failure := 'the gateway was not reached before';
        ELSE
            choose_failure := 'no model gateway is installed';
            PERFORM sag.fall_back(
                'the rank stands', p."strict", '55000',
                format('this database has no model gateway that %s may use', current_user), NULL,
                'Its owner runs sag-pg gateway install, and readers are members of sag_reader. Or '
                'set choose to "rank".'
            );
        END IF;
        IF choose_failure IS NULL THEN
            choose_method := 'model';
        ELSE
            q_reasons := q_reasons || 'choice failed'::text;
        END IF;
        q_mode := sag.describe_mode(
            q_embedding IS NOT NULL, embedding_total >= event_total, q_reasons,
            choose_method = 'model'
        );
    END IF;
    IF choose_method = 'rank' THEN
        SELECT coalesce(array_agg(c.event_id ORDER BY c.rank), '{}') INTO chosen_ids
        FROM sag.choose_events(ranked_ids, p.event_limit) AS c;
    END IF;
    IF with_stages THEN
        RETURN QUERY SELECT 'choose_events', 0, choose_method,
            format('%s events%s', cardinality(chosen_ids), '; ' || choose_failure),
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::integer, NULL::double precision,
            NULL::bigint[], sag.elapsed_ms(started), q_mode;
        RETURN QUERY SELECT 'choose_events', u.no::integer, choose_method, e.title, NULL::bigint,
            u.id, e.chunk_id, NULL::integer, NULL::double precision, NULL::bigint[],
            NULL::double precision, q_mode
        FROM unnest(chosen_ids) WITH ORDINALITY AS u (id, no)
        INNER JOIN sag.event AS e ON e.collection_id = target AND e.event_id = u.id
        ORDER BY u.no;
    END IF;

    -- direct_chunks: C_direct
    started := clock_timestamp();
    SELECT
        coalesce(array_agg(d.chunk_id ORDER BY d.rank), '{}'),
        array_agg(d.relevance ORDER BY d.rank)
    INTO chunk_ids, chunk_relevances
    FROM sag.direct_chunks(
        target, q_embedding, queries, lexeme_weights, lexeme_counts, average_length, direct_ids,
        direct_relevances, statement_total > 0, retrieve_stages.filter, read_all,
        p.direct_chunk_limit, p.frontier_event_budget
    ) AS d;
    IF with_stages THEN
        RETURN QUERY SELECT 'direct_chunks', 0, q_mode,
            format('%s chunks', cardinality(chunk_ids)),
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::integer, NULL::double precision,
            NULL::bigint[], sag.elapsed_ms(started), q_mode;
        RETURN QUERY SELECT 'direct_chunks', u.no::integer, q_mode, e.title, NULL::bigint,
            e.event_id, u.id, NULL::integer, u.relevance, NULL::bigint[],
            NULL::double precision, q_mode
        FROM unnest(chunk_ids, chunk_relevances) WITH ORDINALITY AS u (id, relevance, no)
        INNER JOIN sag.event AS e ON e.collection_id = target AND e.chunk_id = u.id
        ORDER BY u.no;
    END IF;

    -- merge_chunks: C_out
    started := clock_timestamp();
    SELECT
        coalesce(array_agg(m.chunk_id ORDER BY m.rank), '{}'),
        array_agg(m.event_id ORDER BY m.rank), array_agg(m.found_by ORDER BY m.rank)
    INTO output_ids, output_event_ids, output_methods
    FROM sag.merge_chunks(target, chosen_ids, chunk_ids, ranked_ids, p.output_limit) AS m;
    PERFORM set_config('hnsw.ef_search', coalesce(nullif(settings[1], ''), '40'), TRUE),
        set_config('hnsw.iterative_scan', coalesce(nullif(settings[2], ''), 'off'), TRUE),
        set_config(
            'pg_trgm.similarity_threshold', coalesce(nullif(settings[3], ''), '0.3'), TRUE
        );
    IF with_stages THEN
        RETURN QUERY SELECT 'merge_chunks', 0, q_mode,
            format('%s chunks', cardinality(output_ids)),
            NULL::bigint, NULL::bigint, NULL::bigint, NULL::integer, NULL::double precision,
            NULL::bigint[], sag.elapsed_ms(started), q_mode;
    END IF;
    RETURN QUERY
    WITH RECURSIVE pool AS MATERIALIZED (
        SELECT x.* FROM unnest(pool_ids, pool_hops, pool_entity_ids, pool_from_ids)
            AS x (id, hop, entity_id, from_id)
    ),
    output AS MATERIALIZED (
        SELECT u.*, r.score, r.bridge_entity_id
        FROM unnest(output_ids, output_event_ids, output_methods)
            WITH ORDINALITY AS u (chunk_id, id, method, no)
        LEFT JOIN unnest(ranked_ids, ranked_scores, ranked_bridge_entity_ids)
            AS r (id, score, bridge_entity_id) ON r.id = u.id
    ),
    -- Back from each event over the entities that led there to its seed.
    path AS (
        SELECT o.no, x.from_id, x.hop, ARRAY[x.entity_id, CASE
            WHEN o.bridge_entity_id <> x.entity_id OR x.entity_id IS NULL THEN o.bridge_entity_id
        END] AS entity_ids
        FROM output AS o
        INNER JOIN pool AS x ON x.id = o.id
        UNION ALL
        SELECT t.no, x.from_id, x.hop, x.entity_id || t.entity_ids
        FROM path AS t
        INNER JOIN pool AS x ON x.id = t.from_id
    )
    SELECT 'merge_chunks', o.no::integer, o.method, e.title, NULL::bigint, o.id, o.chunk_id, x.hop,
        o.score, array_remove(t.entity_ids, NULL), NULL::double precision, q_mode
    FROM output AS o
    INNER JOIN sag.event AS e ON e.collection_id = target AND e.event_id = o.id
    LEFT JOIN pool AS x ON x.id = o.id
    LEFT JOIN path AS t ON t.no = o.no AND t.hop = 0
    ORDER BY o.no;
END
$$;
COMMENT ON FUNCTION sag.retrieve_stages(
    text, text, halfvec, text[], halfvec[], jsonpath, jsonb, boolean
) IS
'Runs the pipeline, and returns the rows of the last stage or of all; behind sag_retrieve and '
'sag_trace, so that a trace never differs from the result that it explains.';
