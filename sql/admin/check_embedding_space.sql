CREATE OR REPLACE FUNCTION sag.check_embedding_space(model text, dimensions integer)
RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    space sag.embedding_space%ROWTYPE;
BEGIN
    SELECT * INTO space FROM sag.embedding_space;
    IF space.model IS NULL THEN
        RETURN FALSE;
    END IF;
    IF space.model <> check_embedding_space.model
        OR space.dimensions <> check_embedding_space.dimensions
    THEN
        RAISE EXCEPTION 'this database holds vectors of model % with % dimensions',
            quote_literal(space.model), space.dimensions
        USING ERRCODE = 'object_not_in_prerequisite_state',
        DETAIL = format('Vectors of %L with %s dimensions cannot be compared with them.',
            check_embedding_space.model, check_embedding_space.dimensions),
        HINT = 'Use the model that made them, or search without embedding.';
    END IF;
    RETURN TRUE;
END
$$;
COMMENT ON FUNCTION sag.check_embedding_space(text, integer) IS
'Whether the database holds vectors of this model: true, or false where it holds none at all; an '
'error where they are another model''s.';
