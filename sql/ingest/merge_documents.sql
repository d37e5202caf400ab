CREATE OR REPLACE FUNCTION sag.merge_documents(target bigint, held bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    confirmed record;
BEGIN
    CREATE TEMPORARY TABLE sag_merge_document ON COMMIT DROP AS
    WITH upserted AS (
        INSERT INTO sag.document AS d (
            collection_id, source, title, metadata, content_hash, extractor, task_id
        )
        SELECT target, b.source, b.title, b.metadata, b.content_hash, b.extractor, b.task_id
        FROM pg_temp.sag_batch_document AS b
        WHERE b.task_id IS NULL OR b.task_id = ANY(held)
        ORDER BY b.document_no
        ON CONFLICT (collection_id, source) DO UPDATE
        SET title = excluded.title, metadata = excluded.metadata,
            content_hash = excluded.content_hash, extractor = excluded.extractor,
            task_id = coalesce(excluded.task_id, d.task_id), updated_at = now()
        -- Another writer may have brought the same content while this one extracted it.
        WHERE d.content_hash <> excluded.content_hash
        -- Of these rows only those that were there before carry a lock.
        RETURNING d.source, d.document_id, d.xmax = 0 AS is_new
    )
    SELECT b.document_no, u.document_id, u.is_new
    FROM upserted AS u
    INNER JOIN pg_temp.sag_batch_document AS b ON b.source = u.source;
    -- Joins of tables that were just filled are planned blindly otherwise.
    ANALYZE pg_temp.sag_batch_document, pg_temp.sag_merge_document;

    -- What is there already is confirmed by its task, so that an older one cannot undo it.
    FOR confirmed IN
        SELECT b.source, b.task_id FROM pg_temp.sag_batch_document AS b
        WHERE b.task_id = ANY(held) AND NOT EXISTS (
            SELECT FROM pg_temp.sag_merge_document AS m WHERE m.document_no = b.document_no
        )
    LOOP
        UPDATE sag.document AS d SET task_id = confirmed.task_id
        WHERE d.collection_id = target AND d.source = confirmed.source;
    END LOOP;
END
$$;
COMMENT ON FUNCTION sag.merge_documents(bigint, bigint[]) IS
'Adds and updates the documents of the batch, but for those of tasks that are not held, and lists '
'in sag_merge_document which are new and which have other content now. A step of '
'sag.merge_batch().';
