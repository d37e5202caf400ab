CREATE OR REPLACE FUNCTION sag.lock_collections() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET lock_timeout = '60s'
AS $$
BEGIN
    -- Whoever writes locks a row of this table before all else; retrieval only reads it.
    LOCK TABLE sag.collection IN EXCLUSIVE MODE;
END
$$;
COMMENT ON FUNCTION sag.lock_collections() IS
'Until the transaction ends, whoever changes a collection waits; retrieval goes on.';
