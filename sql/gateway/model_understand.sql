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
    warning text;
    state text;
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
    BEGIN
        IF with_entities THEN
            SELECT array_agg(x.name), array_agg(x.embedding) INTO names, name_embeddings
            FROM (
                SELECT
                    e.item ->> 'name' AS name,
                    CASE WHEN jsonb_typeof(e.item -> 'embedding') = 'array' THEN
                        sag.gateway_embedding(
                            e.item -> 'embedding', answer ->> 'model', answer -> 'dimensions'
                        )
                    END AS embedding
                FROM jsonb_array_elements(coalesce(nullif(answer -> 'entities', 'null'), '[]'))
                    WITH ORDINALITY AS e (item, no)
                WHERE jsonb_typeof(e.item -> 'name') = 'string'
                ORDER BY e.no LIMIT 20
            ) AS x;
        END IF;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, failure = MESSAGE_TEXT,
            detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
        names := NULL;
        name_embeddings := NULL;
        reasons := '{entities failed}';
    END;
    IF failure IS NOT NULL THEN
        PERFORM sag.fall_back(
            'no model reads the question', is_strict, state, failure, detail, hint
        );
    END IF;
    IF with_embedding AND jsonb_typeof(answer -> 'embedding') = 'array' THEN
        BEGIN
            embedding := sag.gateway_embedding(
                answer -> 'embedding', answer ->> 'model', answer -> 'dimensions'
            );
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, failure = MESSAGE_TEXT,
                detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
        END;
        IF embedding IS NULL THEN
            PERFORM sag.fall_back(consequence, is_strict, state, failure, detail, hint);
            reasons := reasons || 'embedding failed'::text;
        END IF;
    ELSIF with_embedding AND answer ->> 'embedding_reason' = 'script' THEN
        failure := 'the embedding model does not know the script of the question';
        reasons := reasons || 'script unknown to the model'::text;
        -- No warning: to be searched by words is what becomes such a question.
        IF is_strict THEN
            PERFORM sag.fall_back(
                consequence, TRUE, '55000', failure, NULL,
                'Set the option understand to "sql" for it, or use a multilingual model.'
            );
        END IF;
    ELSIF with_embedding AND answer ->> 'embedding_reason' IS NOT NULL THEN
        failure := format('the gateway gave no embedding: %s', answer ->> 'embedding_reason');
        reasons := reasons || 'embedding failed'::text;
        PERFORM sag.fall_back(
            consequence, is_strict, '55000', failure, NULL,
            'Give sag-pg serve the embedding model that the collection was ingested with, or set '
            'the parameter understand to "sql".'
        );
    ELSIF with_embedding THEN
        reasons := reasons || 'embedding failed'::text;
    END IF;
    FOR warning IN
        SELECT w.value #>> '{}'
        FROM jsonb_array_elements(CASE WHEN jsonb_typeof(answer -> 'warnings') = 'array'
            THEN answer -> 'warnings' ELSE '[]' END) AS w (value)
    LOOP
        PERFORM sag.fall_back('a part of the answer is missing', is_strict, '58000', warning, NULL,
            'The log of the gateway has more.');
        failure := concat_ws('; ', failure, warning);
        IF reasons = '{}' THEN
            reasons := '{entities failed}';
        END IF;
    END LOOP;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION sag.model_understand(text, boolean, boolean, boolean, integer) IS
'The gateway''s part of understand: the question''s embedding, its entities, or both. What fails '
'is NULL, warned of, and given as reasons for the mode; an error where the call is strict.';
