CREATE OR REPLACE FUNCTION sag.reclaim_tasks() RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    most_lapses CONSTANT integer := 5;
    lapsed bigint[];
    reclaimed integer;
BEGIN
    SELECT array_agg(holder.worker_id) INTO lapsed
    FROM (
        SELECT DISTINCT t.worker_id FROM sag.ingest_task AS t WHERE t.state = 'running'
        -- The question is asked once of each worker, not of each task.
        OFFSET 0
    ) AS holder
    WHERE sag.worker_lapsed(holder.worker_id);
    IF lapsed IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE sag.ingest_task AS t
    SET worker_id = NULL,
        lapses = t.lapses + 1,
        state = CASE WHEN t.lapses + 1 < most_lapses THEN 'queued' ELSE 'failed' END,
        finished_at = CASE WHEN t.lapses + 1 < most_lapses THEN NULL ELSE now() END,
        error = CASE
            WHEN t.lapses + 1 < most_lapses THEN t.error
            ELSE format('its worker died %s times while it had this document', most_lapses)
        END,
        hint = CASE
            WHEN t.lapses + 1 < most_lapses THEN t.hint
            ELSE 'See what the system says of the workers'' end, such as a lack of memory.'
        END
    FROM (
        SELECT r.collection_id, r.task_id
        FROM sag.ingest_task AS r
        WHERE r.state = 'running' AND r.worker_id = ANY(lapsed)
        FOR UPDATE SKIP LOCKED
    ) AS held
    WHERE t.collection_id = held.collection_id AND t.task_id = held.task_id;
    GET DIAGNOSTICS reclaimed = ROW_COUNT;
    RETURN reclaimed;
END
$$;
COMMENT ON FUNCTION sag.reclaim_tasks() IS
'Puts tasks whose worker died back into the queue; part of each sag.take_tasks().';
