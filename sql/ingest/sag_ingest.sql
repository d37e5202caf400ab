CREATE OR REPLACE FUNCTION public.sag_ingest(
    source text, content text, title text DEFAULT NULL, metadata jsonb DEFAULT '{}',
    collection text DEFAULT 'default', markdown boolean DEFAULT FALSE
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.share_collection(sag_ingest.collection);
    queued bigint;
BEGIN
    IF coalesce(octet_length(sag_ingest.source), 0) NOT BETWEEN 1 AND 2000 THEN
        RAISE EXCEPTION 'the source is %',
            coalesce(octet_length(sag_ingest.source) || ' bytes long', 'NULL')
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Give a key of 1 to 2000 bytes that is unique in the collection, such as an id.';
    END IF;
    IF coalesce(sag_ingest.content, '') !~ '\S' THEN
        RAISE EXCEPTION 'the content of % is empty', quote_literal(left(sag_ingest.source, 100))
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'A document needs some text; sag_delete(source) takes one out.';
    END IF;
    IF jsonb_typeof(coalesce(sag_ingest.metadata, '{}')) <> 'object' THEN
        RAISE EXCEPTION 'the metadata of % are no object but of type %',
            quote_literal(left(sag_ingest.source, 100)), jsonb_typeof(sag_ingest.metadata)
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Give an object, such as ''{"year": 2024}''.';
    END IF;
    -- What a worker cannot read would end it, and the next one after it.
    IF sag_ingest.metadata @? '$.**{100 to last}' THEN
        RAISE EXCEPTION 'the metadata of % are nested too deeply',
            quote_literal(left(sag_ingest.source, 100))
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Give objects and arrays of less than 100 levels.';
    END IF;
    IF sag_ingest.metadata @? '$.** ? (@ > 1e308 || @ < -1e308)' THEN
        RAISE EXCEPTION 'a number in the metadata of % is too large',
            quote_literal(left(sag_ingest.source, 100))
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Give numbers up to 1e308, or text.';
    END IF;
    -- Nothing but insertions, so that no trigger ever waits for a worker.
    INSERT INTO sag.ingest_task (
        collection_id, job_id, source, title, markdown, metadata, character_count, max_attempts
    ) VALUES (
        target, sag.sql_job(target), sag_ingest.source, coalesce(sag_ingest.title, ''),
        coalesce(sag_ingest.markdown, FALSE), coalesce(sag_ingest.metadata, '{}'),
        char_length(sag_ingest.content), 3
    ) RETURNING task_id INTO queued;
    INSERT INTO sag.ingest_piece (collection_id, task_id, piece_no, content)
    SELECT
        target, queued, p.no,
        substr(sag_ingest.content, p.no * 262144 + 1, 262144)
    FROM generate_series(0, (char_length(sag_ingest.content) - 1) / 262144) AS p (no);
    PERFORM pg_notify('sag_ingest', target::text);
    RETURN queued;
END
$$;
COMMENT ON FUNCTION public.sag_ingest(text, text, text, jsonb, text, boolean) IS
'Queues a document: once the transaction is committed a worker (sag-pg work) brings it into the '
'collection within a second. Content that comes again under the same source replaces the old. '
'Returns the task_id in sag.task_status.';
