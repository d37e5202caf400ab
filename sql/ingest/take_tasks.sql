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
AS $$
#variable_conflict use_column
DECLARE
    wanted record;
    taken_ids bigint[];
    superseded_count bigint;
    is_suspect boolean;
BEGIN
    PERFORM sag.reclaim_tasks();
    FOR wanted IN
        SELECT j.collection_id, j.job_id, c.name AS collection
        FROM sag.ingest_job AS j
        INNER JOIN sag.collection AS c ON c.collection_id = j.collection_id
        WHERE j.stopped IS NULL AND j.cancelled_at IS NULL
            AND (j.settings IS NULL OR j.settings = take_tasks.settings)
            AND (take_tasks.only_collection IS NULL OR c.name = take_tasks.only_collection)
            AND (take_tasks.only_job IS NULL OR j.job_id = take_tasks.only_job)
            AND EXISTS (
                SELECT FROM sag.ingest_task AS t
                WHERE t.collection_id = j.collection_id AND t.job_id = j.job_id
                    AND t.state = 'queued' AND t.available_at <= now()
            )
        ORDER BY j.job_id
    LOOP
        -- One that was there when workers died is taken alone and last, so that of many documents
        -- only the one that kills them fails.
        FOREACH is_suspect IN ARRAY ARRAY[FALSE, TRUE] LOOP
            -- A source that changes often may have filled all that was looked at.
            LOOP
                WITH ready AS (
                    SELECT r.task_id, r.source, r.character_count
                    FROM sag.ingest_task AS r
                    WHERE r.collection_id = wanted.collection_id AND r.job_id = wanted.job_id
                        AND r.state = 'queued' AND r.available_at <= now()
                        AND (r.lapses >= 2) = is_suspect
                    ORDER BY r.task_id
                    LIMIT CASE WHEN is_suspect THEN 1 ELSE take_tasks.document_limit END
                    FOR UPDATE SKIP LOCKED
                ),
                newest AS (
                    SELECT
                        r.task_id,
                        NOT EXISTS (
                            SELECT FROM sag.ingest_task AS n
                            WHERE n.collection_id = wanted.collection_id AND n.source = r.source
                                AND n.task_id > r.task_id AND n.state IN ('queued', 'running')
                        ) AND NOT EXISTS (
                            SELECT FROM sag.document AS d
                            WHERE d.collection_id = wanted.collection_id AND d.source = r.source
                                AND d.task_id > r.task_id
                        ) AS is_newest,
                        row_number() OVER (ORDER BY r.task_id) = 1
                        OR sum(r.character_count) OVER (ORDER BY r.task_id)
                        <= take_tasks.character_limit AS is_within
                    FROM ready AS r
                ),
                superseded AS (
                    UPDATE sag.ingest_task AS t SET state = 'superseded', finished_at = now()
                    FROM newest AS n
                    WHERE t.collection_id = wanted.collection_id AND t.task_id = n.task_id
                        AND NOT n.is_newest
                    RETURNING t.task_id
                ),
                without_failures AS (
                    DELETE FROM sag.chunk_failure AS f USING superseded AS s
                    WHERE f.collection_id = wanted.collection_id AND f.task_id = s.task_id
                ),
                without_text AS (
                    DELETE FROM sag.ingest_piece AS p USING superseded AS s
                    WHERE p.collection_id = wanted.collection_id AND p.task_id = s.task_id
                ),
                taken AS (
                    UPDATE sag.ingest_task AS t
                    SET state = 'running', worker_id = take_tasks.worker
                    FROM newest AS n
                    WHERE t.collection_id = wanted.collection_id AND t.task_id = n.task_id
                        AND n.is_newest AND n.is_within
                    RETURNING t.task_id
                )
                SELECT
                    (SELECT array_agg(t.task_id) FROM taken AS t),
                    (SELECT count(*) FROM superseded)
                INTO taken_ids, superseded_count;
                EXIT WHEN taken_ids IS NOT NULL OR superseded_count = 0;
            END LOOP;
            EXIT WHEN taken_ids IS NOT NULL;
        END LOOP;
        EXIT WHEN taken_ids IS NOT NULL;
    END LOOP;
    RETURN QUERY
    SELECT
        t.task_id, t.collection_id, wanted.collection, t.job_id, t.source, t.title,
        t.title_stated, t.markdown, t.metadata, t.content_hash, t.character_count, t.lapses
    FROM sag.ingest_task AS t
    WHERE taken_ids IS NOT NULL AND t.collection_id = wanted.collection_id
        AND t.task_id = ANY(taken_ids)
    ORDER BY t.task_id;
END
$$;
COMMENT ON FUNCTION sag.take_tasks(bigint, jsonb, text, bigint, integer, bigint) IS
'Gives a worker the next documents of one job, up to a number of documents and characters, and at '
'least one. Tasks of workers that died come back first; those that newer content supersedes are '
'left out.';
