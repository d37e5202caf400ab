CREATE OR REPLACE FUNCTION sag.similarity(a halfvec, b halfvec) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN 1 - (a <=> b) / 2;
END
$$;
COMMENT ON FUNCTION sag.similarity(halfvec, halfvec) IS
'Similarity on the paper''s scale, 1 - cosine distance / 2, in [0, 1]: 0.9 is a cosine of 0.8, '
'0.4 a cosine of -0.2. Parameters, traces and results use this scale.';
