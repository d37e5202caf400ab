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
        DETAIL = format('pgvector says: %s.', SQLERRM);
    END;
    IF gateway_embedding.model IS NULL
        OR gateway_embedding.dimensions IS DISTINCT FROM to_jsonb(vector_dims(embedding))
    THEN
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
