CREATE OR REPLACE FUNCTION sag.choose_events(event_ids bigint[], event_limit integer)
RETURNS TABLE (rank integer, event_id bigint)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE ROWS 10
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT c.no::integer, c.event_id
    FROM unnest(choose_events.event_ids) WITH ORDINALITY AS c (event_id, no)
    WHERE c.no <= choose_events.event_limit;
END
$$;
COMMENT ON FUNCTION sag.choose_events(bigint[], integer) IS
'The final choice among Ê where the rank stands; model_choose() is the other one.';
