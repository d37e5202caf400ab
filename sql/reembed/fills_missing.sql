CREATE OR REPLACE FUNCTION sag.fills_missing() RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM sag.reembedding AS r
        INNER JOIN sag.embedding_space AS s
            ON s.model = r.model AND s.dimensions = r.dimensions
    );
END
$$;
COMMENT ON FUNCTION sag.fills_missing() IS
'Whether the reembedding under way is by the model in use, for rows that have no vector.';
