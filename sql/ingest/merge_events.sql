CREATE OR REPLACE FUNCTION sag.merge_events(target bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    configuration regconfig;
BEGIN
    SELECT c.text_search_configuration::regconfig INTO configuration
    FROM sag.collection AS c WHERE c.collection_id = target;

    WITH new_chunk AS (
        INSERT INTO sag.chunk (
            collection_id, document_id, ordinal, heading_path, content, start_offset, end_offset,
            lexemes, embedding, answer_key
        )
        SELECT
            target, m.document_id, b.ordinal, b.heading_path, b.content, b.start_offset,
            b.end_offset,
            CASE WHEN b.event_content IS NOT NULL
                THEN sag.text_vector(configuration, concat_ws('. ', b.event_title, b.content))
            END,
            CASE WHEN b.event_content IS NOT NULL AND l2_norm(b.chunk_embedding) > 0
                THEN b.chunk_embedding
            END,
            b.answer_key
        FROM pg_temp.sag_batch_chunk AS b
        INNER JOIN pg_temp.sag_merge_document AS m ON m.document_no = b.document_no
        ORDER BY b.document_no, b.ordinal
        RETURNING chunk_id, document_id, ordinal
    ),
    new_event AS (
        INSERT INTO sag.event (
            collection_id, chunk_id, document_id, title, content, lexemes, embedding
        )
        SELECT
            target, c.chunk_id, c.document_id, b.event_title, b.event_content,
            sag.text_vector(
                configuration, concat_ws('. ', b.event_title, coalesce(b.event_content, b.content))
            ),
            CASE WHEN l2_norm(b.event_embedding) > 0 THEN b.event_embedding END
        FROM new_chunk AS c
        INNER JOIN pg_temp.sag_merge_document AS m ON m.document_id = c.document_id
        INNER JOIN pg_temp.sag_batch_chunk AS b
            ON b.document_no = m.document_no AND b.ordinal = c.ordinal
        ORDER BY c.chunk_id
        RETURNING event_id, chunk_id, lexeme_count, embedding IS NOT NULL AS is_embedded,
            content IS NOT NULL AS is_statement
    ),
    new_link AS (
        INSERT INTO sag.event_entity (collection_id, entity_id, event_id, is_subject, type, role)
        SELECT target, n.entity_id, e.event_id, l.is_subject, l.type, l.role
        FROM new_event AS e
        INNER JOIN new_chunk AS c ON c.chunk_id = e.chunk_id
        INNER JOIN pg_temp.sag_merge_document AS m ON m.document_id = c.document_id
        INNER JOIN pg_temp.sag_merge_link AS l
            ON l.document_no = m.document_no AND l.ordinal = c.ordinal
        INNER JOIN pg_temp.sag_merge_entity AS n ON n.normalized_name = l.normalized_name
    )
    UPDATE sag.collection_statistic AS s
    SET event_total = s.event_total + t.events,
        lexeme_total = s.lexeme_total + t.lexemes,
        embedding_total = s.embedding_total + t.embedded,
        statement_total = s.statement_total + t.statements
    FROM (
        SELECT
            count(*) AS events,
            coalesce(sum(e.lexeme_count), 0) AS lexemes,
            count(*) FILTER (WHERE e.is_embedded) AS embedded,
            count(*) FILTER (WHERE e.is_statement) AS statements
        FROM new_event AS e
    ) AS t
    WHERE s.collection_id = target;
END
$$;
COMMENT ON FUNCTION sag.merge_events(bigint) IS
'Adds chunks, events and links of the documents in sag_merge_document, and their totals. A step of '
'sag.merge_batch().';
