CREATE OR REPLACE FUNCTION sag.purge_queue(age interval DEFAULT interval '30 days') RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    -- The rest is left to the next time.
    row_limit CONSTANT integer := 100000;
BEGIN
    -- What somebody else is at is left out, so that nobody waits for a clean-up.
    WITH ended AS (
        SELECT t.collection_id, t.task_id
        FROM sag.ingest_task AS t
        WHERE t.finished_at < now() - purge_queue.age
        LIMIT row_limit
        FOR UPDATE SKIP LOCKED
    ),
    without_text AS (
        DELETE FROM sag.ingest_piece AS p USING ended AS e
        WHERE p.collection_id = e.collection_id AND p.task_id = e.task_id
    ),
    without_failures AS (
        DELETE FROM sag.chunk_failure AS f USING ended AS e
        WHERE f.collection_id = e.collection_id AND f.task_id = e.task_id
    )
    DELETE FROM sag.ingest_task AS t USING ended AS e
    WHERE t.collection_id = e.collection_id AND t.task_id = e.task_id;

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

    WITH unused AS (
        SELECT a.collection_id, a.answer_key
        FROM sag.model_answer AS a
        WHERE a.created_at < now() - purge_queue.age
            AND NOT EXISTS (
                SELECT FROM sag.chunk AS c
                WHERE c.collection_id = a.collection_id AND c.answer_key = a.answer_key
            )
        LIMIT row_limit
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM sag.model_answer AS a USING unused AS u
    WHERE a.collection_id = u.collection_id AND a.answer_key = u.answer_key;
END
$$;
COMMENT ON FUNCTION sag.purge_queue(interval) IS
'Deletes what is left of tasks and jobs that ended some time ago, and answers of models of that '
'age that no chunk carries any more. sag.seal_job() calls it once a day.';
