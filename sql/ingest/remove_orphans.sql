CREATE OR REPLACE FUNCTION sag.remove_orphans(target bigint, entity_ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    orphan_ids bigint[];
BEGIN
    -- An alias that a person gave is work that no ingest brings back; its entity stays.
    SELECT array_agg(n.entity_id) INTO orphan_ids
    FROM sag.entity AS n
    WHERE n.collection_id = target AND n.entity_id = ANY(remove_orphans.entity_ids)
        AND n.event_count = 0
        AND NOT EXISTS (
            SELECT FROM sag.entity_alias AS a
            WHERE a.collection_id = target AND a.entity_id = n.entity_id AND a.origin = 'person'
        );
    DELETE FROM sag.entity_alias AS a
    WHERE a.collection_id = target AND a.entity_id = ANY(orphan_ids);
    DELETE FROM sag.entity AS n
    WHERE n.collection_id = target AND n.entity_id = ANY(orphan_ids);
END
$$;
COMMENT ON FUNCTION sag.remove_orphans(bigint, bigint[]) IS
'Deletes those of the given entities that no event carries any more. The caller holds their locks.';
