CREATE OR REPLACE FUNCTION sag.collection_key(collection text) RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    found bigint;
    closest text;
BEGIN
    SELECT c.collection_id INTO found
    FROM sag.collection AS c
    WHERE c.name = collection_key.collection;
    IF found IS NULL THEN
        SELECT c.name INTO closest
        FROM sag.collection AS c
        ORDER BY c.name <-> coalesce(collection_key.collection, '') ASC, c.name ASC
        LIMIT 1;
        RAISE EXCEPTION 'collection % does not exist', coalesce(quote_literal(collection), 'NULL')
        USING ERRCODE = 'undefined_object',
        DETAIL = format(
            'The closest of %s collections is %L.', (SELECT count(*) FROM sag.collection), closest
        ),
        HINT = 'SELECT name FROM sag.collection lists them; sag.create_collection(name) makes one.';
    END IF;
    RETURN found;
END
$$;
COMMENT ON FUNCTION sag.collection_key(text) IS
'The collection_id of a name; an error with the closest name where there is none.';
