CREATE OR REPLACE FUNCTION sag.event_links(target bigint, event_ids bigint[])
RETURNS TABLE (entity_id bigint, link_count integer)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    -- As in sag.document_events().
    RETURN QUERY
    SELECT l.entity_id, count(*)::integer
    FROM unnest(event_links.event_ids) AS e (event_id)
    CROSS JOIN LATERAL (
        SELECT x.entity_id FROM sag.event_entity AS x
        WHERE x.collection_id = target AND x.event_id = e.event_id
        OFFSET 0
    ) AS l
    GROUP BY l.entity_id;
END
$$;
COMMENT ON FUNCTION sag.event_links(bigint, bigint[]) IS
'The entities that events carry, each with the number of those events.';
