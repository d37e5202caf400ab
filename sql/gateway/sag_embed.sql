CREATE OR REPLACE FUNCTION public.sag_embed(content text, input_type text DEFAULT 'question')
RETURNS halfvec
-- Not VOLATILE, for an index can be searched by no such function.
LANGUAGE plpgsql STABLE PARALLEL UNSAFE STRICT
SET search_path FROM CURRENT
AS $$
DECLARE
    answer jsonb;
    timeout_ms integer;
BEGIN
    IF content !~ '\S' THEN
        RAISE EXCEPTION 'the text is empty'
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a text that has words.';
    END IF;
    IF input_type NOT IN ('question', 'passage') THEN
        RAISE EXCEPTION 'input type % does not exist', quote_literal(input_type)
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'question embeds what is looked for, passage what is to be found.';
    END IF;
    SELECT coalesce(p.database_value, p.default_value)::integer INTO timeout_ms
    FROM sag.parameter AS p
    WHERE p.name = 'gateway_timeout';
    answer := sag.call_gateway(
        'embed', jsonb_build_object('texts', jsonb_build_array(content), 'input_type', input_type),
        timeout_ms
    );
    IF jsonb_typeof(answer -> 'embeddings') IS DISTINCT FROM 'array'
        OR jsonb_array_length(answer -> 'embeddings') <> 1
    THEN
        RAISE EXCEPTION 'the gateway gave no embedding' USING ERRCODE = 'protocol_violation';
    ELSIF answer #> '{embeddings,0}' = 'null' THEN
        RAISE EXCEPTION 'the embedding model does not know the script of the text'
        USING ERRCODE = 'object_not_in_prerequisite_state',
        DETAIL = format('The model is %s.', answer ->> 'model'),
        HINT = 'Such texts are searched by their words: sag_retrieve does so by itself.';
    END IF;
    RETURN sag.gateway_embedding(
        answer #> '{embeddings,0}', answer ->> 'model', answer -> 'dimensions'
    );
END
$$;
COMMENT ON FUNCTION public.sag_embed(text, text) IS
'The embedding of a text, made by the model behind the gateway: a question''s unless input_type is '
'passage. An error where there is no gateway. In a query it stands in brackets, '
'ORDER BY embedding <=> (SELECT sag_embed(''...'')): so it is called once, and without them once a '
'row wherever no index is used.';
