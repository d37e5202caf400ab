DO $$
BEGIN
    -- It took documents, and returned totals for the caller to subtract.
    IF pg_get_function_result(to_regprocedure('sag.remove_events(bigint, bigint[])')) <> 'bytea[]'
    THEN
        DROP FUNCTION sag.remove_events(bigint, bigint[]);
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION sag.remove_events(target bigint, event_ids bigint[]) RETURNS bytea[]
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    chunk_ids bigint[];
    answer_keys bytea[];
BEGIN
    PERFORM sag.remove_aliases(target, remove_events.event_ids);

    -- Each event's links are looked up as in sag.event_links(), and nothing moves them meanwhile:
    -- the caller holds the collection.
    DELETE FROM sag.event_entity AS l
    WHERE l.ctid = ANY(ARRAY(
        SELECT o.ctid
        FROM unnest(remove_events.event_ids) AS e (event_id)
        CROSS JOIN LATERAL (
            SELECT x.ctid FROM sag.event_entity AS x
            WHERE x.collection_id = target AND x.event_id = e.event_id
            OFFSET 0
        ) AS o
    ));

    WITH removed AS (
        DELETE FROM sag.event AS e
        WHERE e.collection_id = target AND e.event_id = ANY(remove_events.event_ids)
        RETURNING e.chunk_id, e.lexeme_count, e.embedding IS NOT NULL AS is_embedded,
            e.content IS NOT NULL AS is_statement, e.next_embedding IS NOT NULL AS has_next
    ),
    subtracted AS (
        UPDATE sag.collection_statistic AS s
        SET event_total = s.event_total - t.events,
            lexeme_total = s.lexeme_total - t.lexemes,
            embedding_total = s.embedding_total - t.embedded,
            statement_total = s.statement_total - t.statements,
            next_embedding_total = s.next_embedding_total - t.with_next
        FROM (
            SELECT
                count(*) AS events,
                coalesce(sum(r.lexeme_count), 0) AS lexemes,
                count(*) FILTER (WHERE r.is_embedded) AS embedded,
                count(*) FILTER (WHERE r.is_statement) AS statements,
                count(*) FILTER (WHERE r.has_next) AS with_next
            FROM removed AS r
        ) AS t
        WHERE s.collection_id = target
    )
    SELECT array_agg(r.chunk_id) INTO chunk_ids FROM removed AS r;

    WITH removed AS (
        DELETE FROM sag.chunk AS c
        WHERE c.collection_id = target AND c.chunk_id = ANY(chunk_ids)
        RETURNING c.answer_key
    )
    SELECT array_agg(DISTINCT r.answer_key) INTO answer_keys
    FROM removed AS r WHERE r.answer_key IS NOT NULL;

    IF EXISTS (SELECT FROM sag.reembedding) THEN
        DELETE FROM sag.reembed_task AS t
        WHERE t.collection_id = target AND t.kind = 'event'
            AND t.row_id = ANY(remove_events.event_ids);
        DELETE FROM sag.reembed_task AS t
        WHERE t.collection_id = target AND t.kind = 'chunk' AND t.row_id = ANY(chunk_ids);
    END IF;
    RETURN answer_keys;
END
$$;
COMMENT ON FUNCTION sag.remove_events(bigint, bigint[]) IS
'Deletes events with their chunks, links and further names, and subtracts them from the '
'collection''s totals. Counts of entities are the caller''s part: sag.count_events(). Returns the '
'keys of the answers that they were made of, NULL where there are none.';
