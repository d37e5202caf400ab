CREATE OR REPLACE FUNCTION sag.settle_tasks(target bigint, held bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    WITH outcome AS (
        SELECT
            b.task_id,
            m.is_new,
            coalesce(c.chunk_count, 0) AS chunk_count,
            coalesce(f.failure_count, 0) AS failure_count,
            f.first_error,
            f.first_hint
        FROM pg_temp.sag_batch_document AS b
        LEFT JOIN pg_temp.sag_merge_document AS m ON m.document_no = b.document_no
        LEFT JOIN (
            SELECT x.document_no, count(*)::integer AS chunk_count
            FROM pg_temp.sag_batch_chunk AS x
            GROUP BY x.document_no
        ) AS c ON c.document_no = b.document_no
        LEFT JOIN (
            SELECT
                x.document_no,
                count(*)::integer AS failure_count,
                (array_agg(x.error ORDER BY x.ordinal))[1] AS first_error,
                (array_agg(x.hint ORDER BY x.ordinal))[1] AS first_hint
            FROM pg_temp.sag_batch_failure AS x
            GROUP BY x.document_no
        ) AS f ON f.document_no = b.document_no
        WHERE b.task_id = ANY(held)
    )
    UPDATE sag.ingest_task AS t
    SET worker_id = NULL,
        state = CASE
            WHEN o.failure_count > 0 AND t.attempts + 1 < t.max_attempts THEN 'queued'
            WHEN o.failure_count > 0 THEN 'incomplete'
            WHEN o.is_new THEN 'added'
            WHEN NOT o.is_new THEN 'replaced'
            ELSE 'unchanged'
        END,
        attempts = t.attempts + (o.failure_count > 0)::integer,
        available_at = CASE
            WHEN o.failure_count > 0 THEN now() + sag.retry_delay(t.attempts + 1)
            ELSE t.available_at
        END,
        finished_at = CASE
            WHEN o.failure_count > 0 AND t.attempts + 1 < t.max_attempts THEN NULL
            ELSE now()
        END,
        -- Chunks of a document that somebody else brought are not counted twice.
        chunk_count = CASE
            WHEN o.is_new IS NULL AND o.failure_count = 0 THEN 0 ELSE o.chunk_count
        END,
        error = CASE
            WHEN o.failure_count > 0
                THEN format(
                    'models failed for %s of %s chunks; %s',
                    o.failure_count, o.chunk_count, o.first_error
                )
        END,
        hint = CASE WHEN o.failure_count > 0 THEN o.first_hint END
    FROM outcome AS o
    WHERE t.collection_id = target AND t.task_id = o.task_id
        -- Says the same again, in a form that leads the planner to the primary key.
        AND t.task_id = ANY(held);

    DELETE FROM sag.chunk_failure AS f
    WHERE f.collection_id = target
        AND f.task_id = ANY(held)
        AND NOT EXISTS (
            SELECT FROM pg_temp.sag_batch_failure AS x
            INNER JOIN pg_temp.sag_batch_document AS b ON b.document_no = x.document_no
            WHERE b.task_id = f.task_id AND x.ordinal = f.ordinal
        );
    INSERT INTO sag.chunk_failure AS f (collection_id, task_id, ordinal, error, hint)
    SELECT target, b.task_id, x.ordinal, x.error, x.hint
    FROM pg_temp.sag_batch_failure AS x
    INNER JOIN pg_temp.sag_batch_document AS b ON b.document_no = x.document_no
    WHERE b.task_id = ANY(held)
    ON CONFLICT (collection_id, task_id, ordinal) DO UPDATE
    SET attempts = f.attempts + 1, error = excluded.error, hint = excluded.hint,
        failed_at = now();

    -- What may be tried again keeps its text.
    DELETE FROM sag.ingest_piece AS p
    USING pg_temp.sag_batch_document AS b
    WHERE p.collection_id = target AND p.task_id = b.task_id AND p.task_id = ANY(held)
        AND NOT EXISTS (
            SELECT FROM pg_temp.sag_batch_failure AS x WHERE x.document_no = b.document_no
        );
    PERFORM sag.supersede_failed(target, held);
END
$$;
COMMENT ON FUNCTION sag.settle_tasks(bigint, bigint[]) IS
'Says of the tasks of a batch what became of them: in, or to be tried again, or incomplete. A step '
'of sag.merge_batch().';
