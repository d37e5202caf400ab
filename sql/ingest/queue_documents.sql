CREATE OR REPLACE FUNCTION sag.queue_documents(
    collection text, job bigint, sources text[], titles text[], title_stated boolean[],
    markdown boolean[], metadata jsonb[], content_hashes bytea[], contents text[],
    character_counts bigint[], max_attempts integer
) RETURNS TABLE (place integer, task_id bigint, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.share_collection(queue_documents.collection);
    live_ids bigint[];
    ids bigint[];
    outcomes text[];
BEGIN
    live_ids := ARRAY(
        SELECT max(t.task_id)
        FROM sag.ingest_task AS t
        WHERE t.collection_id = target AND t.state IN ('queued', 'running')
            AND t.source = ANY(queue_documents.sources)
        GROUP BY t.source
    );
    IF cardinality(live_ids) > 0 THEN
        -- As in sag.cancel_job().
        PERFORM sag.lock_collection(queue_documents.collection);
    END IF;
    WITH given AS MATERIALIZED (
        SELECT g.*, count(*) OVER (PARTITION BY g.source) = 1 AS is_single
        FROM unnest(
            queue_documents.sources, queue_documents.titles, queue_documents.title_stated,
            queue_documents.markdown, queue_documents.metadata, queue_documents.content_hashes,
            queue_documents.contents, queue_documents.character_counts
        ) WITH ORDINALITY AS g (
            source, title, title_stated, markdown, metadata, content_hash, content,
            character_count, no
        )
    ),
    live AS MATERIALIZED (
        SELECT t.source, t.task_id
        FROM sag.ingest_task AS t
        WHERE t.collection_id = target AND t.task_id = ANY(live_ids)
            AND t.state IN ('queued', 'running')
    ),
    -- What is in the queue already is taken over with its text, even while a worker has it. Of a
    -- source that comes twice here, both are queued and the later wins.
    adopted AS (
        UPDATE sag.ingest_task AS t
        SET job_id = queue_documents.job, attempts = 0, available_at = now(),
            max_attempts = queue_documents.max_attempts,
            -- One that workers died of stays suspect, and gets some further tries.
            lapses = least(t.lapses, 2)
        FROM live AS l
        INNER JOIN given AS g ON g.source = l.source AND g.is_single
        WHERE t.collection_id = target AND t.task_id = l.task_id
            AND t.content_hash = g.content_hash AND t.state IN ('queued', 'running')
        RETURNING t.task_id, t.source
    ),
    placed AS MATERIALIZED (
        SELECT
            g.*,
            x.outcome,
            CASE x.outcome
                WHEN 'adopted' THEN a.task_id
                WHEN 'queued' THEN nextval(pg_get_serial_sequence('sag.ingest_task', 'task_id'))
            END AS task_id
        FROM given AS g
        LEFT JOIN adopted AS a ON a.source = g.source
        LEFT JOIN live AS l ON l.source = g.source
        LEFT JOIN sag.document AS d
            ON d.collection_id = target AND d.source = g.source
            AND d.content_hash = g.content_hash
        CROSS JOIN LATERAL (
            SELECT
                CASE
                    WHEN a.task_id IS NOT NULL THEN 'adopted'
                    WHEN g.is_single AND d.document_id IS NOT NULL AND l.task_id IS NULL
                        THEN 'unchanged'
                    ELSE 'queued'
                END AS outcome
        ) AS x
        ORDER BY g.no
    ),
    queued AS (
        INSERT INTO sag.ingest_task (
            collection_id, job_id, task_id, source, title, title_stated, markdown, metadata,
            content_hash, character_count, max_attempts
        ) OVERRIDING SYSTEM VALUE
        SELECT
            target, queue_documents.job, p.task_id, p.source, p.title, p.title_stated,
            p.markdown, p.metadata, p.content_hash, p.character_count,
            queue_documents.max_attempts
        FROM placed AS p
        WHERE p.outcome = 'queued'
        ORDER BY p.no
    ),
    with_text AS (
        INSERT INTO sag.ingest_piece (collection_id, task_id, piece_no, content)
        SELECT target, p.task_id, 0, p.content
        FROM placed AS p
        WHERE p.outcome = 'queued' AND p.content IS NOT NULL
    ),
    superseded AS (
        UPDATE sag.ingest_task AS t SET state = 'superseded', finished_at = now()
        FROM (
            SELECT o.task_id
            FROM sag.ingest_task AS o
            WHERE o.collection_id = target AND o.state = 'queued'
                AND o.source IN (SELECT p.source FROM placed AS p WHERE p.outcome = 'queued')
            ORDER BY o.task_id
            FOR UPDATE SKIP LOCKED
        ) AS older
        WHERE t.collection_id = target AND t.task_id = older.task_id
        RETURNING t.task_id
    ),
    without_failures AS (
        DELETE FROM sag.chunk_failure AS f USING superseded AS s
        WHERE f.collection_id = target AND f.task_id = s.task_id
    ),
    without_text AS (
        DELETE FROM sag.ingest_piece AS p USING superseded AS s
        WHERE p.collection_id = target AND p.task_id = s.task_id
    )
    SELECT array_agg(p.task_id ORDER BY p.no), array_agg(p.outcome ORDER BY p.no)
    INTO ids, outcomes
    FROM placed AS p;

    IF 'unchanged' = ANY(outcomes) THEN
        UPDATE sag.ingest_job AS j
        SET unchanged_count
            = j.unchanged_count + cardinality(array_positions(outcomes, 'unchanged'))
        WHERE j.collection_id = target AND j.job_id = queue_documents.job;
    END IF;
    PERFORM pg_notify('sag_ingest', target::text);
    RETURN QUERY
    SELECT o.no::integer, o.task_id, o.outcome
    FROM unnest(ids, outcomes) WITH ORDINALITY AS o (task_id, outcome, no);
END
$$;
COMMENT ON FUNCTION sag.queue_documents(
    text, bigint, text[], text[], boolean[], boolean[], jsonb[], bytea[], text[], bigint[], integer
) IS
'Adds documents to a job. Says of each whether it was queued, adopted from another job that has '
'the same content in the queue, or is unchanged in the collection. Texts that are NULL are the '
'caller''s to copy into sag.ingest_piece in the same transaction.';
