CREATE OR REPLACE FUNCTION sag.check_embedding(embedding halfvec) RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    space sag.embedding_space%ROWTYPE;
BEGIN
    SELECT * INTO space FROM sag.embedding_space;
    IF space.dimensions <> vector_dims(embedding) THEN
        RAISE EXCEPTION 'the embedding has % dimensions', vector_dims(embedding)
        USING ERRCODE = 'data_exception',
        DETAIL = format('Vectors in this database have %s.', space.dimensions),
        HINT = format('Embed the question with model %L.', space.model);
    END IF;
    IF l2_norm(embedding) = 0 THEN
        RAISE EXCEPTION 'the embedding is made of zeros'
        USING ERRCODE = 'data_exception',
        DETAIL = 'It has no direction, so that nothing is near to it.',
        HINT = 'Embed a text that has words, or leave the embedding out.';
    END IF;
END
$$;
COMMENT ON FUNCTION sag.check_embedding(halfvec) IS
'An error for a vector of another length than those of this database, or without direction.';
