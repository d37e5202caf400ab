CREATE OR REPLACE FUNCTION sag.lock_collection(collection text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    locked bigint := sag.share_collection(lock_collection.collection);
BEGIN
    -- Whoever changes what a collection holds takes this one lock before any other. Writers would
    -- meet at its totals and at its frequent entities anyway, each at another point of its way.
    PERFORM FROM sag.collection_statistic AS s WHERE s.collection_id = locked FOR UPDATE;
    -- What follows can take minutes; a session whose client has died must not hold the collection
    -- that long.
    PERFORM sag.watch_client('5s', TRUE);
    RETURN locked;
END
$$;
COMMENT ON FUNCTION sag.lock_collection(text) IS
'The collection_id of a name. Until the transaction ends nobody else changes what it holds, nor '
'drops it; retrieval goes on.';
