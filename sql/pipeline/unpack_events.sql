CREATE OR REPLACE FUNCTION sag.unpack_events(event_ids bigint[], numbers double precision[])
RETURNS TABLE (event_id bigint, number double precision)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE ROWS 1000
SET search_path FROM CURRENT
AS $$
BEGIN
    -- A generic plan takes unnest() of a parameter for 10 rows and joins hundreds by nested loops;
    -- ROWS tells it what a pool is like.
    RETURN QUERY
    SELECT u.event_id, u.number
    FROM unnest(unpack_events.event_ids, unpack_events.numbers) AS u (event_id, number);
END
$$;
COMMENT ON FUNCTION sag.unpack_events(bigint[], double precision[]) IS
'The events of a pool, each with its number, as rows.';
