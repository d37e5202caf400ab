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
    same_ids bigint[];
    adopted bigint[];
    ids bigint[];
    outcomes text[];
    queued_sources text[];
    first_queued bigint;
    cancelled_at timestamptz;
BEGIN
    -- OFFSET 0, here and below: one by one, whatever the planner thinks of tables that grew since
    -- ANALYZE.
    same_ids := ARRAY(
        SELECT newest.task_id
        FROM (
            SELECT u.source, (array_agg(u.content_hash))[1] AS content_hash
            FROM unnest(queue_documents.sources, queue_documents.content_hashes)
                AS u (source, content_hash)
            GROUP BY u.source
            HAVING count(*) = 1
        ) AS g
        CROSS JOIN LATERAL (
            SELECT l.task_id, l.content_hash
            FROM (
                SELECT t.task_id, t.content_hash FROM sag.ingest_task AS t
                WHERE t.collection_id = target AND t.source = g.source
                    AND t.state IN ('queued', 'running')
                OFFSET 0
            ) AS l
            ORDER BY l.task_id DESC
            LIMIT 1
        ) AS newest
        WHERE newest.content_hash = g.content_hash
    );
    IF cardinality(same_ids) > 0 THEN
        -- As in sag.cancel_job(), and before the job, as there.
        PERFORM sag.lock_collection(queue_documents.collection);
    END IF;
    -- Held to the end: a cancellation sees all that was queued before it, and nothing comes after.
    SELECT j.cancelled_at INTO cancelled_at
    FROM sag.ingest_job AS j
    WHERE j.collection_id = target AND j.job_id = queue_documents.job
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'collection % has no job %', quote_literal(queue_documents.collection),
            coalesce(queue_documents.job::text, 'NULL')
        USING ERRCODE = 'no_data_found', HINT = 'sag.start_job() opens one.';
    END IF;
    IF cancelled_at IS NOT NULL THEN
        RAISE EXCEPTION 'job % was cancelled', queue_documents.job
        USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'The same ingest again opens another one.';
    END IF;
    -- What is in the queue already is taken over with its text, even while a worker has it. Of a
    -- source that comes twice here, both are queued and the later wins.
    adopted := ARRAY(
        SELECT held.task_id
        FROM unnest(same_ids) AS same (task_id)
        CROSS JOIN LATERAL (
            SELECT t.task_id FROM sag.ingest_task AS t
            WHERE t.collection_id = target AND t.task_id = same.task_id
                AND t.state IN ('queued', 'running')
            OFFSET 0
            FOR UPDATE
        ) AS held
    );
    UPDATE sag.ingest_task AS t
    SET job_id = queue_documents.job, attempts = 0, available_at = now(),
        max_attempts = queue_documents.max_attempts,
        -- One that workers died of stays suspect, and gets some further tries.
        lapses = least(t.lapses, 2)
    WHERE t.collection_id = target AND t.task_id = ANY(adopted);

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
    placed AS MATERIALIZED (
        SELECT
            g.*,
            x.outcome,
            CASE x.outcome
                WHEN 'adopted' THEN l.task_id
                WHEN 'queued' THEN nextval(pg_get_serial_sequence('sag.ingest_task', 'task_id'))
            END AS task_id
        FROM given AS g
        CROSS JOIN LATERAL (
            SELECT max(w.task_id) AS task_id
            FROM (
                SELECT o.task_id FROM sag.ingest_task AS o
                WHERE o.collection_id = target AND o.source = g.source
                    AND o.state IN ('queued', 'running')
                OFFSET 0
            ) AS w
        ) AS l
        LEFT JOIN LATERAL (
            SELECT o.document_id FROM sag.document AS o
            WHERE o.collection_id = target AND o.source = g.source
                AND o.content_hash = g.content_hash
            OFFSET 0
        ) AS d ON TRUE
        CROSS JOIN LATERAL (
            SELECT
                CASE
                    WHEN l.task_id = ANY(adopted) THEN 'adopted'
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
    )
    SELECT
        array_agg(p.task_id ORDER BY p.no), array_agg(p.outcome ORDER BY p.no),
        array_agg(p.source) FILTER (WHERE p.outcome = 'queued'),
        min(p.task_id) FILTER (WHERE p.outcome = 'queued')
    INTO ids, outcomes, queued_sources, first_queued
    FROM placed AS p;

    PERFORM sag.discard_tasks(target, ARRAY(
        SELECT older.task_id
        FROM unnest(queued_sources) AS s (source)
        CROSS JOIN LATERAL (
            SELECT t.task_id FROM sag.ingest_task AS t
            -- Those that are queued, in a form for which the index by source is the only one.
            WHERE t.collection_id = target AND t.source = s.source
                AND t.state IN ('queued', 'running') AND t.worker_id IS NULL
                AND t.task_id < first_queued
            OFFSET 0
            FOR UPDATE SKIP LOCKED
        ) AS older
    ), 'superseded');

    IF 'unchanged' = ANY(outcomes) THEN
        UPDATE sag.ingest_job AS j
        SET unchanged_count
            = j.unchanged_count + cardinality(array_positions(outcomes, 'unchanged'))
        WHERE j.collection_id = target AND j.job_id = queue_documents.job;
    END IF;
    IF outcomes && ARRAY['queued', 'adopted'] THEN
        PERFORM pg_notify('sag_ingest', target::text);
    END IF;
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
