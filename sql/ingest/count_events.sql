CREATE OR REPLACE FUNCTION sag.count_events(
    target bigint, entity_ids bigint[], deltas integer[], embeddings halfvec[] DEFAULT NULL
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    without_event bigint[];
BEGIN
    WITH counted AS (
        UPDATE sag.entity AS n
        SET event_count = n.event_count + c.delta, embedding = coalesce(n.embedding, c.embedding)
        FROM unnest(
            count_events.entity_ids, count_events.deltas, count_events.embeddings
        ) AS c (entity_id, delta, embedding)
        WHERE n.collection_id = target AND n.entity_id = c.entity_id
            -- Says the same again, in a form that leads the planner to the primary key.
            AND n.entity_id = ANY(count_events.entity_ids)
        RETURNING n.entity_id, n.event_count
    )
    SELECT array_agg(c.entity_id) INTO without_event FROM counted AS c WHERE c.event_count = 0;
    RETURN without_event;
END
$$;
COMMENT ON FUNCTION sag.count_events(bigint, bigint[], integer[], halfvec[]) IS
'Adds to the event_count of entities, and gives those a vector that have none. Returns the '
'entities that are left without event, NULL where there are none.';
