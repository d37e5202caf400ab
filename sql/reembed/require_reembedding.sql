CREATE OR REPLACE FUNCTION sag.require_reembedding() RETURNS void
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM sag.reembedding) THEN
        RAISE EXCEPTION 'no change of the embedding model is under way'
        USING ERRCODE = 'object_not_in_prerequisite_state',
        DETAIL = 'It was given up, or is done.',
        HINT = 'sag.start_reembedding() begins one.';
    END IF;
END
$$;
COMMENT ON FUNCTION sag.require_reembedding() IS
'An error where no change of the embedding model is under way.';
