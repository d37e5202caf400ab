CREATE OR REPLACE FUNCTION sag.check_model(model text, dimensions integer) RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF coalesce(check_model.model, '') = ''
        OR coalesce(check_model.dimensions, 0) NOT BETWEEN 1 AND 4000
    THEN
        RAISE EXCEPTION 'no embedding space of model % and % dimensions',
            coalesce(quote_literal(check_model.model), 'NULL'),
            coalesce(check_model.dimensions::text, 'NULL')
        USING ERRCODE = 'invalid_parameter_value',
        DETAIL = 'A model has a name, and pgvector indexes halfvec up to 4000 dimensions.',
        HINT = 'Ask the provider for shorter vectors, or take another model.';
    END IF;
END
$$;
COMMENT ON FUNCTION sag.check_model(text, integer) IS
'An error for a model whose vectors cannot be kept.';
