CREATE OR REPLACE FUNCTION sag.merge_aliases(target bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
-- Conditions on what was normalised just now leave the planner expecting one row.
SET enable_nestloop = off
AS $$
BEGIN
    WITH stated AS MATERIALIZED (
        SELECT
            b.document_no, b.ordinal, b.name, sag.normalize_entity(b.name) AS normalized_name,
            sag.normalize_entity(b.alias_of) AS normalized_alias_of
        FROM pg_temp.sag_batch_entity AS b
        WHERE b.alias_of IS NOT NULL
    ),
    named AS MATERIALIZED (
        SELECT n.entity_id, a.name, a.normalized_name, m.document_id, a.ordinal
        FROM stated AS a
        -- An alias is one of an entity that its own chunk names.
        INNER JOIN pg_temp.sag_merge_link AS l
            ON l.document_no = a.document_no AND l.ordinal = a.ordinal
            AND l.normalized_name = a.normalized_alias_of
        INNER JOIN pg_temp.sag_merge_entity AS n ON n.normalized_name = l.normalized_name
        INNER JOIN pg_temp.sag_merge_document AS m ON m.document_no = a.document_no
        WHERE char_length(a.normalized_name) BETWEEN 2 AND 400
            AND a.normalized_name <> a.normalized_alias_of
    ),
    -- One by one, for of a collection that is new the planner knows nothing, and would rather
    -- join all of it.
    given AS MATERIALIZED (
        SELECT
            a.entity_id, a.name, a.normalized_name,
            (
                SELECT e.event_id
                FROM sag.event AS e
                WHERE e.collection_id = target AND e.chunk_id = (
                    SELECT c.chunk_id FROM sag.chunk AS c
                    WHERE c.collection_id = target AND c.document_id = a.document_id
                        AND c.ordinal = a.ordinal
                )
            ) AS event_id
        FROM named AS a
    ),
    new_alias AS (
        INSERT INTO sag.entity_alias (collection_id, entity_id, name, origin)
        SELECT target, g.entity_id, min(g.name COLLATE "C"), 'extraction'
        FROM given AS g
        GROUP BY g.entity_id, g.normalized_name
        ON CONFLICT DO NOTHING
    )
    INSERT INTO sag.event_alias (collection_id, entity_id, normalized_name, event_id)
    SELECT DISTINCT target, g.entity_id, g.normalized_name, g.event_id FROM given AS g;
END
$$;
COMMENT ON FUNCTION sag.merge_aliases(bigint) IS
'Adds the further names of entities that the events of the batch give. A step of '
'sag.merge_batch().';
