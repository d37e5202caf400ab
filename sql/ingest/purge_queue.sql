CREATE OR REPLACE FUNCTION sag.purge_queue(age interval DEFAULT interval '30 days') RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    old_ids bigint[];
BEGIN
    SELECT array_agg(t.task_id) INTO old_ids
    FROM (
        SELECT o.task_id FROM sag.ingest_task AS o
        WHERE o.finished_at < now() - purge_queue.age
        -- The rest is left to the next time.
        LIMIT 10000
        FOR UPDATE SKIP LOCKED
    ) AS t;
    IF old_ids IS NOT NULL THEN
        DELETE FROM sag.ingest_piece AS p WHERE p.task_id = ANY(old_ids);
        DELETE FROM sag.chunk_failure AS f WHERE f.task_id = ANY(old_ids);
        DELETE FROM sag.ingest_task AS t WHERE t.task_id = ANY(old_ids);
    END IF;
    WITH ended AS (
        SELECT j.collection_id, j.job_id
        FROM sag.ingest_job AS j
        WHERE j.origin = 'command' AND j.started_at < now() - purge_queue.age
            AND NOT EXISTS (
                SELECT FROM sag.ingest_task AS t
                WHERE t.collection_id = j.collection_id AND t.job_id = j.job_id
            )
        FOR UPDATE SKIP LOCKED
    ),
    without_usage AS (
        DELETE FROM sag.ingest_usage AS u USING ended AS e
        WHERE u.collection_id = e.collection_id AND u.job_id = e.job_id
    )
    DELETE FROM sag.ingest_job AS j USING ended AS e
    WHERE j.collection_id = e.collection_id AND j.job_id = e.job_id;
    DELETE FROM sag.model_answer AS a
    WHERE a.created_at < now() - purge_queue.age
        AND NOT EXISTS (
            SELECT FROM sag.chunk AS c
            WHERE c.collection_id = a.collection_id AND c.answer_key = a.answer_key
        );
END
$$;
COMMENT ON FUNCTION sag.purge_queue(interval) IS
'Deletes what is left of tasks and jobs that ended some time ago, and answers of models of that '
'age that no chunk carries any more.';
