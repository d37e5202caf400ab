CREATE OR REPLACE FUNCTION sag.remove_orphans(target bigint, entity_ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    orphan_ids bigint[];
BEGIN
    -- The caller holds the collection and waits for nothing else: an entity that somebody holds is
    -- being given an alias right now.
    orphan_ids := ARRAY(
        SELECT n.entity_id FROM sag.entity AS n
        WHERE n.collection_id = target AND n.entity_id = ANY(remove_orphans.entity_ids)
            AND n.event_count = 0
        FOR UPDATE SKIP LOCKED
    );
    -- An alias that a person gave is work that no ingest brings back; its entity stays. Now that
    -- the entities are locked, none is added. OFFSET 0 as in sag.document_events().
    orphan_ids := ARRAY(
        SELECT o.entity_id FROM unnest(orphan_ids) AS o (entity_id)
        WHERE NOT EXISTS (
            SELECT FROM sag.entity_alias AS a
            WHERE a.collection_id = target AND a.entity_id = o.entity_id AND a.origin = 'person'
            OFFSET 0
        )
    );
    -- Those that extraction gave went with their events, but for what an earlier version of
    -- sag-pg, which did not write down where they came from, has left.
    DELETE FROM sag.entity_alias AS a
    WHERE a.ctid = ANY(ARRAY(
        SELECT x.ctid
        FROM unnest(orphan_ids) AS o (entity_id)
        CROSS JOIN LATERAL (
            SELECT y.ctid FROM sag.entity_alias AS y
            WHERE y.collection_id = target AND y.entity_id = o.entity_id
            OFFSET 0
        ) AS x
    ));
    DELETE FROM sag.reembed_task AS t
    WHERE t.collection_id = target AND t.kind = 'entity' AND t.row_id = ANY(orphan_ids);
    DELETE FROM sag.entity AS n
    WHERE n.collection_id = target AND n.entity_id = ANY(orphan_ids);
END
$$;
COMMENT ON FUNCTION sag.remove_orphans(bigint, bigint[]) IS
'Deletes those of the given entities that no event carries any more, but for those with an alias '
'that a person gave.';
