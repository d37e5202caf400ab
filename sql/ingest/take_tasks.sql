CREATE OR REPLACE FUNCTION sag.take_tasks(
    worker bigint, settings jsonb, only_collection text, only_job bigint,
    document_limit integer, character_limit bigint
) RETURNS TABLE (
    task_id bigint, collection_id bigint, collection text, job_id bigint, source text,
    title text, title_stated boolean, markdown boolean, metadata jsonb, content_hash bytea,
    character_count bigint, lapses integer
)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
-- However many tasks wait, their index is read from the front. To a planner without statistics a
-- job has one task, and it is all the same to sort them.
SET enable_sort TO off
AS $$
#variable_conflict use_column
DECLARE
    only_target bigint;
    next_job bigint := coalesce(take_tasks.only_job, 0);
    last_job bigint := coalesce(take_tasks.only_job, 9223372036854775807);
    target bigint;
    wanted text;
    taken bigint[];
    superseded bigint[];
BEGIN
    IF take_tasks.only_collection IS NOT NULL THEN
        only_target := sag.collection_key(take_tasks.only_collection);
    END IF;
    PERFORM sag.reclaim_tasks();
    <<jobs>>
    LOOP
        -- From one job that has something in the queue to the next. There may be many others.
        SELECT t.job_id, t.collection_id INTO next_job, target
        FROM sag.ingest_task AS t
        WHERE t.state = 'queued' AND t.job_id BETWEEN next_job AND last_job
        ORDER BY t.job_id
        LIMIT 1;
        EXIT WHEN next_job IS NULL;
        SELECT c.name INTO wanted
        FROM sag.ingest_job AS j
        INNER JOIN sag.collection AS c ON c.collection_id = j.collection_id
        WHERE j.collection_id = target AND j.job_id = next_job
            AND j.stopped IS NULL AND j.cancelled_at IS NULL
            AND (j.settings IS NULL OR j.settings = take_tasks.settings)
            AND (only_target IS NULL OR j.collection_id = only_target);
        IF FOUND THEN
            -- One that was there when workers died is taken alone and last, so that of many
            -- documents only the one that kills them fails.
            FOR is_suspect IN 0..1 LOOP
                -- A source that changes often may have filled all that is looked at.
                LOOP
                    SELECT
                        array_agg(n.task_id) FILTER (WHERE NOT n.is_newest),
                        array_agg(n.task_id) FILTER (WHERE n.is_newest AND n.is_within)
                    INTO superseded, taken
                    FROM (
                        SELECT
                            r.task_id,
                            NOT EXISTS (
                                SELECT FROM sag.ingest_task AS n
                                WHERE n.collection_id = target AND n.source = r.source
                                    AND n.task_id > r.task_id
                                    AND n.state IN ('queued', 'running')
                                OFFSET 0
                            ) AND NOT EXISTS (
                                SELECT FROM sag.document AS d
                                WHERE d.collection_id = target AND d.source = r.source
                                    AND d.task_id > r.task_id
                                OFFSET 0
                            ) AS is_newest,
                            row_number() OVER (ORDER BY r.task_id) = 1
                            OR sum(r.character_count) OVER (ORDER BY r.task_id)
                            <= take_tasks.character_limit AS is_within
                        FROM (
                            SELECT q.task_id, q.source, q.character_count
                            FROM sag.ingest_task AS q
                            -- A range of one job, so that only that index has the order.
                            WHERE q.job_id BETWEEN next_job AND next_job
                                AND q.collection_id = target
                                AND q.state = 'queued' AND q.available_at <= now()
                                AND (q.lapses >= 2)::integer = is_suspect
                            ORDER BY q.job_id, q.task_id
                            LIMIT CASE is_suspect
                                WHEN 0 THEN take_tasks.document_limit ELSE 1
                            END
                            FOR UPDATE SKIP LOCKED
                        ) AS r
                    ) AS n;
                    IF superseded IS NOT NULL THEN
                        PERFORM sag.discard_tasks(target, superseded, 'superseded');
                    END IF;
                    EXIT jobs WHEN taken IS NOT NULL;
                    EXIT WHEN superseded IS NULL;
                END LOOP;
            END LOOP;
        END IF;
        next_job := next_job + 1;
    END LOOP;

    IF taken IS NULL THEN
        IF take_tasks.only_job IS NOT NULL THEN
            PERFORM sag.job_key(take_tasks.only_job);
        END IF;
        RETURN;
    END IF;
    RETURN QUERY
    WITH held AS (
        UPDATE sag.ingest_task AS t SET state = 'running', worker_id = take_tasks.worker
        WHERE t.collection_id = target AND t.task_id = ANY(taken)
        RETURNING
            t.task_id, t.collection_id, wanted, t.job_id, t.source, t.title, t.title_stated,
            t.markdown, t.metadata, t.content_hash, t.character_count, t.lapses
    )
    SELECT * FROM held AS h ORDER BY h.task_id;
END
$$;
COMMENT ON FUNCTION sag.take_tasks(bigint, jsonb, text, bigint, integer, bigint) IS
'Gives a worker the next documents of one job, up to a number of documents and characters, and at '
'least one. Tasks of workers that died come back first; those that newer content supersedes are '
'left out.';
