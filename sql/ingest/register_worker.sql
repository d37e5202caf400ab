CREATE OR REPLACE FUNCTION sag.register_worker(name text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    registered bigint;
BEGIN
    -- Those that were killed did not take their leave.
    DELETE FROM sag.ingest_worker AS w
    USING (
        SELECT d.worker_id
        FROM sag.ingest_worker AS d
        WHERE d.heartbeat_at < now() - interval '1 hour' AND sag.worker_lapsed(d.worker_id)
        FOR UPDATE SKIP LOCKED
    ) AS dead
    WHERE w.worker_id = dead.worker_id;
    -- Nor did they say what they do not ask for any more, and not all of it comes again.
    DELETE FROM sag.model_answer AS a
    USING (
        SELECT c.collection_id, c.answer_key
        FROM sag.model_answer AS c
        WHERE c.answer IS NULL
            AND NOT EXISTS (SELECT FROM sag.ingest_worker AS w WHERE w.worker_id = c.worker_id)
        FOR UPDATE SKIP LOCKED
    ) AS unasked
    WHERE a.collection_id = unasked.collection_id AND a.answer_key = unasked.answer_key;
    INSERT INTO sag.ingest_worker (name) VALUES (register_worker.name)
    RETURNING worker_id INTO registered;
    RETURN registered;
END
$$;
COMMENT ON FUNCTION sag.register_worker(text) IS
'Announces a process that is going to work on the queue, and returns its worker_id. Forgets '
'workers that died an hour ago, and what they were asking models for.';
