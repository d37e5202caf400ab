CREATE OR REPLACE FUNCTION sag.remove_aliases(target bigint, event_ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    alias record;
BEGIN
    -- A further name goes with the last event that gave it, also where its entity stays.
    FOR alias IN
        WITH removed AS (
            DELETE FROM sag.event_alias AS g
            WHERE g.ctid = ANY(ARRAY(
                SELECT o.ctid
                FROM unnest(remove_aliases.event_ids) AS e (event_id)
                CROSS JOIN LATERAL (
                    SELECT x.ctid FROM sag.event_alias AS x
                    WHERE x.collection_id = target AND x.event_id = e.event_id
                    OFFSET 0
                ) AS o
            ))
            RETURNING g.entity_id, g.normalized_name
        )
        SELECT DISTINCT r.entity_id, r.normalized_name FROM removed AS r
    LOOP
        DELETE FROM sag.entity_alias AS a
        WHERE a.collection_id = target AND a.normalized_name = alias.normalized_name
            AND a.entity_id = alias.entity_id AND a.origin = 'extraction'
            AND NOT EXISTS (
                SELECT FROM sag.event_alias AS o
                WHERE o.collection_id = target AND o.entity_id = alias.entity_id
                    AND o.normalized_name = alias.normalized_name
            );
    END LOOP;
END
$$;
COMMENT ON FUNCTION sag.remove_aliases(bigint, bigint[]) IS
'Takes back the further names that events gave to entities; those that another event or a person '
'gave too stay.';
