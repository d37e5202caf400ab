CREATE OR REPLACE FUNCTION sag.merge_entities(target bigint, replaced_event_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    without_event bigint[];
BEGIN
    -- Names are compared normalised, so the batch is made distinct by that and not by spelling.
    CREATE TEMPORARY TABLE sag_merge_link ON COMMIT DROP AS
    -- Normalising is what costs most here, and a name comes many times.
    WITH spelling AS MATERIALIZED (
        SELECT s.name, sag.normalize_entity(s.name) AS normalized_name
        FROM (
            SELECT DISTINCT b.name FROM pg_temp.sag_batch_entity AS b WHERE b.alias_of IS NULL
        ) AS s
    )
    SELECT DISTINCT ON (b.document_no, b.ordinal, s.normalized_name COLLATE "C")
        b.document_no, b.ordinal, b.name, s.normalized_name, b.type, b.is_subject, b.role,
        -- A vector of zeros has no direction: its cosine is no number.
        CASE WHEN l2_norm(b.embedding) > 0 THEN b.embedding END AS embedding
    FROM pg_temp.sag_merge_document AS m
    INNER JOIN pg_temp.sag_batch_entity AS b ON b.document_no = m.document_no
    INNER JOIN spelling AS s ON s.name = b.name
    WHERE b.alias_of IS NULL AND char_length(s.normalized_name) BETWEEN 2 AND 400
    ORDER BY
        b.document_no, b.ordinal, s.normalized_name COLLATE "C", b.is_subject DESC,
        b.name COLLATE "C";
    ANALYZE pg_temp.sag_merge_link;

    CREATE TEMPORARY TABLE sag_merge_entity (
        normalized_name text NOT NULL,
        entity_id bigint,
        link_count integer NOT NULL,
        name text NOT NULL,
        embedding halfvec
    ) ON COMMIT DROP;
    -- Not CREATE TABLE AS, which is planned for this very collection whatever plan_cache_mode says.
    INSERT INTO pg_temp.sag_merge_entity (normalized_name, entity_id, link_count, name, embedding)
    SELECT x.normalized_name, n.entity_id, x.link_count, x.name, x.embedding
    FROM (
        SELECT
            l.normalized_name,
            count(*)::integer AS link_count,
            (array_agg(l.name ORDER BY l.document_no, l.ordinal))[1] AS name,
            (array_agg(l.embedding ORDER BY l.document_no, l.ordinal))[1] AS embedding
        FROM pg_temp.sag_merge_link AS l
        GROUP BY l.normalized_name
    ) AS x
    -- As in sag.document_events(). The collection is held: what is not there does not come.
    LEFT JOIN LATERAL (
        SELECT y.entity_id FROM sag.entity AS y
        WHERE y.collection_id = target AND y.normalized_name = x.normalized_name
        OFFSET 0
    ) AS n ON TRUE;
    ANALYZE pg_temp.sag_merge_entity;

    -- One count for what comes and what goes, so that an entity of both is not written at all.
    SELECT sag.count_events(
        target, array_agg(c.entity_id), array_agg(c.delta), array_agg(c.embedding)
    ) INTO without_event
    FROM (
        SELECT
            coalesce(x.entity_id, l.entity_id) AS entity_id,
            coalesce(x.link_count, 0) - coalesce(l.link_count, 0) AS delta,
            x.embedding
        FROM (
            SELECT k.* FROM pg_temp.sag_merge_entity AS k WHERE k.entity_id IS NOT NULL
        ) AS x
        FULL JOIN sag.event_links(target, replaced_event_ids) AS l ON l.entity_id = x.entity_id
    ) AS c
    WHERE c.delta <> 0 OR c.embedding IS NOT NULL;

    WITH added AS (
        INSERT INTO sag.entity (collection_id, name, embedding, event_count)
        SELECT target, x.name, x.embedding, x.link_count
        FROM pg_temp.sag_merge_entity AS x
        WHERE x.entity_id IS NULL
        ORDER BY x.normalized_name
        RETURNING normalized_name, entity_id
    )
    UPDATE pg_temp.sag_merge_entity AS x SET entity_id = a.entity_id
    FROM added AS a WHERE a.normalized_name = x.normalized_name;
    RETURN without_event;
END
$$;
COMMENT ON FUNCTION sag.merge_entities(bigint, bigint[]) IS
'Adds the entities of the batch and counts its links, less those of the events to be replaced; '
'lists both in sag_merge_entity and sag_merge_link. Returns the entities that are left without '
'event, NULL where there are none. A step of sag.merge_batch().';
