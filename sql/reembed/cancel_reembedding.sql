CREATE OR REPLACE FUNCTION sag.cancel_reembedding(patience_ms integer DEFAULT 200)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM sag.require_maintainer();
    LOCK TABLE sag.embedding_space IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM sag.reembedding) THEN
        RETURN FALSE;
    END IF;
    IF NOT pg_try_advisory_xact_lock(
        'pg_class'::regclass::oid::integer, 'sag.reembedding'::regclass::oid::integer
    ) THEN
        RAISE EXCEPTION 'sag-pg reembed is at work'
        USING ERRCODE = 'object_in_use', HINT = 'Stop it first.';
    END IF;
    PERFORM sag.lock_collections();
    IF NOT sag.fills_missing() THEN
        PERFORM sag.lock_vectors(cancel_reembedding.patience_ms);
        PERFORM sag.renew_next_embedding();
    END IF;
    DELETE FROM sag.reembed_task;
    DELETE FROM sag.reembedding;
    RETURN TRUE;
END
$$;
COMMENT ON FUNCTION sag.cancel_reembedding(integer) IS
'Gives up the change of the embedding model that is under way, with the vectors made so far; false '
'where there is none. May fail with lock_not_available, see sag.lock_vectors(): try again.';
