CREATE OR REPLACE FUNCTION sag.event_has_entity(target bigint, event bigint, entity bigint)
RETURNS boolean
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE COST 10
SET search_path FROM CURRENT
AS $$
BEGIN
    -- A function and not a join, so that an ordered scan of the vector index stays one and asks
    -- this of each event that it meets.
    RETURN EXISTS (
        SELECT FROM sag.event_entity AS l
        WHERE l.collection_id = target AND l.entity_id = entity AND l.event_id = event
    );
END
$$;
COMMENT ON FUNCTION sag.event_has_entity(bigint, bigint, bigint) IS
'Whether an event carries an entity; the filter of vector scans for hubs.';
