CREATE OR REPLACE FUNCTION sag.gateway_embedding(vector jsonb, model text, dimensions jsonb)
RETURNS halfvec
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    embedding halfvec;
BEGIN
    BEGIN
        embedding := gateway_embedding.vector::text::halfvec;
    EXCEPTION WHEN data_exception THEN
        RAISE EXCEPTION 'the gateway gave an embedding that is no vector'
        USING ERRCODE = 'protocol_violation',
        -- The whole of it is repeated there.
        DETAIL = format('pgvector says: %s.', left(SQLERRM, 200));
    END;
    IF gateway_embedding.model IS NULL THEN
        RAISE EXCEPTION 'the gateway does not say which model its embedding is of'
        USING ERRCODE = 'protocol_violation';
    ELSIF gateway_embedding.dimensions IS DISTINCT FROM to_jsonb(vector_dims(embedding)) THEN
        RAISE EXCEPTION 'the gateway gave an embedding of % dimensions, and said %',
            vector_dims(embedding), coalesce(gateway_embedding.dimensions::text, 'nothing')
        USING ERRCODE = 'protocol_violation';
    END IF;
    PERFORM sag.check_embedding_space(gateway_embedding.model, vector_dims(embedding));
    PERFORM sag.check_embedding(embedding);
    RETURN embedding;
END
$$;
COMMENT ON FUNCTION sag.gateway_embedding(jsonb, text, jsonb) IS
'A vector in the gateway''s answer; an error where it is none, or not of the model whose vectors '
'this database holds.';
