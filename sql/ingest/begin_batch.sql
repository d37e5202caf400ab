CREATE OR REPLACE FUNCTION sag.begin_batch() RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    -- Gone with the transaction, so that nothing is left behind a transaction pooler.
    CREATE TEMPORARY TABLE sag_batch_document (
        document_no integer PRIMARY KEY,
        source text NOT NULL,
        title text NOT NULL,
        metadata jsonb NOT NULL,
        content_hash bytea NOT NULL,
        extractor text,
        task_id bigint
    ) ON COMMIT DROP;
    CREATE TEMPORARY TABLE sag_batch_chunk (
        document_no integer NOT NULL,
        ordinal integer NOT NULL,
        heading_path text[] NOT NULL,
        content text NOT NULL,
        start_offset bigint NOT NULL,
        end_offset bigint NOT NULL,
        chunk_embedding halfvec,
        event_title text NOT NULL,
        event_content text,
        event_embedding halfvec,
        answer_key bytea,
        PRIMARY KEY (document_no, ordinal)
    ) ON COMMIT DROP;
    CREATE TEMPORARY TABLE sag_batch_entity (
        document_no integer NOT NULL,
        ordinal integer NOT NULL,
        name text NOT NULL,
        type text NOT NULL,
        is_subject boolean NOT NULL,
        role text,
        alias_of text,
        embedding halfvec
    ) ON COMMIT DROP;
    CREATE TEMPORARY TABLE sag_batch_failure (
        document_no integer NOT NULL,
        ordinal integer NOT NULL,
        error text NOT NULL,
        hint text
    ) ON COMMIT DROP;
END
$$;
COMMENT ON FUNCTION sag.begin_batch() IS
'Creates the temporary tables sag_batch_document, sag_batch_chunk, sag_batch_entity and '
'sag_batch_failure, to be filled with COPY and taken over by sag.merge_batch() in the same '
'transaction.';
