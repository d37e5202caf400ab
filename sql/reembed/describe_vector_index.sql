CREATE OR REPLACE FUNCTION sag.describe_vector_index(holder text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    EXECUTE format(
        'COMMENT ON INDEX sag.%I IS %L', describe_vector_index.holder || '_embedding',
        'Nearest neighbours by cosine; not used where a collection is small enough to be read.'
    );
END
$$;
COMMENT ON FUNCTION sag.describe_vector_index(text) IS
'Gives the vector index of a table its comment.';
