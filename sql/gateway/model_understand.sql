CREATE OR REPLACE FUNCTION sag.model_understand(
    question text,
    with_embedding boolean,
    with_entities boolean,
    is_strict boolean,
    timeout_ms integer
)
RETURNS TABLE (
    embedding halfvec, names text[], name_embeddings halfvec[], reasons text[], failure text,
    is_reachable boolean
)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE ROWS 1
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    consequence constant text := CASE
        WHEN with_embedding THEN 'lexemes are searched, without an embedding'
        ELSE 'no model reads the question'
    END;
    answer jsonb;
    -- What is missing of the answer: part, sqlstate, message, detail and hint, as the gateway gives
    -- its warnings.
    faults jsonb;
    fault jsonb;
    vectors jsonb;
    part text;
    state text;
    problem text;
    detail text;
    hint text;
BEGIN
    reasons := '{}';
    is_reachable := TRUE;
    BEGIN
        answer := sag.call_gateway('understand', jsonb_build_object(
            'question', model_understand.question,
            'embed', with_embedding, 'entities', with_entities
        ), timeout_ms);
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, failure = MESSAGE_TEXT,
            detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
        answer := NULL;
    END;
    IF answer IS NULL THEN
        PERFORM sag.fall_back(consequence, is_strict, state, failure, detail, hint);
        reasons := '{gateway failed}';
        is_reachable := left(state, 2) NOT IN ('08', '57') OR state = '08P01';
        RETURN NEXT;
        RETURN;
    END IF;
    faults := CASE WHEN jsonb_typeof(answer -> 'warnings') = 'array'
        THEN answer -> 'warnings' ELSE '[]' END;
    IF with_entities AND jsonb_typeof(answer -> 'entities') = 'array' THEN
        SELECT array_agg(x.item ->> 'name'), jsonb_agg(x.item -> 'embedding')
        INTO names, vectors
        FROM (
            SELECT e.item
            FROM jsonb_array_elements(answer -> 'entities') WITH ORDINALITY AS e (item, no)
            WHERE jsonb_typeof(e.item -> 'name') = 'string'
            ORDER BY e.no LIMIT 20
        ) AS x;
        BEGIN
            SELECT array_agg(CASE WHEN v.item <> 'null' THEN
                sag.gateway_embedding(v.item, answer ->> 'model', answer -> 'dimensions')
            END ORDER BY v.no) INTO name_embeddings
            FROM jsonb_array_elements(vectors) WITH ORDINALITY AS v (item, no);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, problem = MESSAGE_TEXT,
                detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            faults := faults || jsonb_build_object(
                'part', 'entity_embeddings', 'sqlstate', state, 'message', problem,
                'detail', detail, 'hint', hint
            );
        END;
    ELSIF with_entities THEN
        faults := faults || jsonb_build_object(
            'part', 'entities', 'sqlstate', '08P01', 'message', 'the gateway gave no entities'
        );
    END IF;
    IF with_embedding AND answer -> 'embedding' <> 'null' THEN
        BEGIN
            embedding := sag.gateway_embedding(
                answer -> 'embedding', answer ->> 'model', answer -> 'dimensions'
            );
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, problem = MESSAGE_TEXT,
                detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            faults := faults || jsonb_build_object(
                'part', 'embedding', 'sqlstate', state, 'message', problem,
                'detail', detail, 'hint', hint
            );
        END;
    ELSIF with_embedding AND answer ->> 'embedding_reason' IS NOT NULL THEN
        faults := faults || CASE answer ->> 'embedding_reason'
            WHEN 'script' THEN jsonb_build_object(
                'part', 'script', 'sqlstate', '55000',
                'message', 'the embedding model does not know the script of the question',
                'hint', 'Set the option understand to "sql" for it, or use a multilingual model.'
            )
            ELSE jsonb_build_object(
                'part', 'embedding', 'sqlstate', '55000',
                'message', format('the gateway gave no embedding: %s',
                    answer ->> 'embedding_reason'),
                'hint', 'Give sag-pg serve the embedding model that the collection was ingested '
                    'with, or set the parameter understand to "sql".'
            )
        END;
    ELSIF with_embedding AND NOT faults @> '[{"part": "embedding"}]' THEN
        faults := faults || jsonb_build_object(
            'part', 'embedding', 'sqlstate', '08P01', 'message', 'the gateway gave no embedding'
        );
    END IF;
    FOR fault IN SELECT f.item FROM jsonb_array_elements(faults) AS f (item) LOOP
        part := coalesce(nullif(fault ->> 'part', ''), 'entities');
        problem := coalesce(
            nullif(fault ->> 'message', ''), nullif(fault #>> '{}', ''),
            'the gateway says nothing of why'
        );
        failure := concat_ws('; ', failure, problem);
        reasons := reasons || CASE part
            WHEN 'script' THEN 'script unknown to the model'
            ELSE format('%s failed', replace(part, '_', ' '))
        END;
        -- No warning of a script: to be searched by words is what becomes such a question.
        IF is_strict OR part <> 'script' THEN
            PERFORM sag.fall_back(
                CASE part
                    WHEN 'entities' THEN 'no model reads the question'
                    WHEN 'entity_embeddings' THEN 'the names in the question are compared by words'
                    ELSE consequence
                END,
                is_strict, coalesce(substring(fault ->> 'sqlstate' FROM '^[0-9A-Z]{5}$'), '08P01'),
                problem, fault ->> 'detail', fault ->> 'hint'
            );
        END IF;
    END LOOP;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION sag.model_understand(text, boolean, boolean, boolean, integer) IS
'The gateway''s part of understand: the question''s embedding, its entities, or both. What fails '
'is NULL, warned of, and given as reasons for the mode; an error where the call is strict.';
