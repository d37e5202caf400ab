CREATE OR REPLACE FUNCTION sag.release_reembedding(settings jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM pg_advisory_unlock(
        'pg_class'::regclass::oid::integer, 'sag.reembedding'::regclass::oid::integer
    );
    PERFORM set_config(s.key, s.value, FALSE)
    FROM jsonb_each_text(release_reembedding.settings) AS s;
END
$$;
COMMENT ON FUNCTION sag.release_reembedding(jsonb) IS
'Undoes sag.claim_reembedding(), whose result it takes; so does the end of the session.';
