CREATE OR REPLACE FUNCTION sag.share_collection(collection text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    locked bigint;
BEGIN
    LOOP
        SELECT c.collection_id INTO locked
        FROM sag.collection AS c WHERE c.name = share_collection.collection FOR KEY SHARE;
        EXIT WHEN locked IS NOT NULL;
        -- An error, unless somebody dropped the collection and made it again just now.
        PERFORM sag.collection_key(share_collection.collection);
    END LOOP;
    RETURN locked;
END
$$;
COMMENT ON FUNCTION sag.share_collection(text) IS
'The collection_id of a name, which sag.drop_collection() leaves alone until the transaction ends.';
