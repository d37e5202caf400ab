CREATE OR REPLACE FUNCTION sag.merge_batch(collection text)
RETURNS TABLE (source text, state text, chunk_count integer)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    -- Held to the end, so that sag.drop_collection() waits for this merge and not amid it.
    target bigint := sag.lock_collection(merge_batch.collection);
    configuration regconfig;
    unknown text;
    replaced_ids bigint[];
    removed record;
BEGIN
    SELECT c.text_search_configuration::regconfig INTO configuration
    FROM sag.collection AS c WHERE c.collection_id = target;

    SELECT b.type INTO unknown FROM pg_temp.sag_batch_entity AS b
    WHERE NOT EXISTS (SELECT FROM sag.entity_type AS t WHERE t.name = b.type) LIMIT 1;
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION 'entity type % does not exist', quote_literal(unknown)
        USING ERRCODE = 'foreign_key_violation',
        DETAIL = (SELECT 'Known types: ' || string_agg(t.name, ', ' ORDER BY t.name) || '.'
            FROM sag.entity_type AS t),
        HINT = 'Add it to sag.entity_type, or give the entity a known type.';
    END IF;
    IF NOT EXISTS (SELECT FROM sag.embedding_space) AND EXISTS (
        SELECT FROM pg_temp.sag_batch_chunk AS b
        WHERE b.event_embedding IS NOT NULL OR b.chunk_embedding IS NOT NULL
        UNION ALL
        SELECT FROM pg_temp.sag_batch_entity AS b WHERE b.embedding IS NOT NULL
    ) THEN
        RAISE EXCEPTION 'this database has no embedding space yet'
        USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'SELECT sag.set_embedding_space(model, dimensions) sets it.';
    END IF;

    -- Locks are taken in one order by everybody: the collection (shared), documents by source,
    -- entities by normalised name, the collection's totals, answers last. That is what keeps two
    -- writers from a deadlock.
    CREATE TEMPORARY TABLE sag_merge_document ON COMMIT DROP AS
    WITH upserted AS (
        INSERT INTO sag.document AS d (
            collection_id, source, title, metadata, content_hash, extractor
        )
        SELECT target, b.source, b.title, b.metadata, b.content_hash, b.extractor
        FROM pg_temp.sag_batch_document AS b
        ORDER BY b.source COLLATE "C"
        ON CONFLICT (collection_id, source) DO UPDATE
        SET title = excluded.title, metadata = excluded.metadata,
            content_hash = excluded.content_hash, extractor = excluded.extractor,
            updated_at = now()
        -- Another writer may have brought the same content while this one extracted it.
        WHERE d.content_hash <> excluded.content_hash
        -- Of these rows only those that were there before carry a lock.
        RETURNING d.source, d.document_id, d.xmax = 0 AS is_new
    )
    SELECT b.document_no, u.document_id, u.is_new
    FROM upserted AS u
    INNER JOIN pg_temp.sag_batch_document AS b ON b.source = u.source;

    -- Joins of tables that were just filled are planned blindly otherwise.
    ANALYZE pg_temp.sag_batch_document, pg_temp.sag_batch_chunk, pg_temp.sag_batch_entity,
    pg_temp.sag_merge_document;

    SELECT array_agg(m.document_id) INTO replaced_ids
    FROM pg_temp.sag_merge_document AS m WHERE NOT m.is_new;

    -- Names are compared normalised, so the batch is made distinct by that and not by spelling.
    CREATE TEMPORARY TABLE sag_merge_link ON COMMIT DROP AS
    SELECT DISTINCT ON (l.document_no, l.ordinal, l.normalized_name) l.*
    FROM (
        SELECT
            b.document_no, b.ordinal, b.name, sag.normalize_entity(b.name) AS normalized_name,
            b.type, b.is_subject, b.role,
            -- A vector of zeros has no direction: its cosine is no number.
            CASE WHEN l2_norm(b.embedding) > 0 THEN b.embedding END AS embedding
        FROM pg_temp.sag_batch_entity AS b
        INNER JOIN pg_temp.sag_merge_document AS m ON m.document_no = b.document_no
        WHERE b.alias_of IS NULL
    ) AS l
    WHERE char_length(l.normalized_name) BETWEEN 2 AND 400
    ORDER BY l.document_no, l.ordinal, l.normalized_name, l.is_subject DESC, l.name;

    CREATE TEMPORARY TABLE sag_merge_alias ON COMMIT DROP AS
    SELECT l.*
    FROM (
        SELECT
            b.name, sag.normalize_entity(b.name) AS normalized_name,
            sag.normalize_entity(b.alias_of) AS normalized_alias_of
        FROM pg_temp.sag_batch_entity AS b
        WHERE b.alias_of IS NOT NULL
    ) AS l
    WHERE char_length(l.normalized_name) BETWEEN 2 AND 400
        AND l.normalized_name <> l.normalized_alias_of;

    CREATE TEMPORARY TABLE sag_merge_entity ON COMMIT DROP AS
    SELECT
        x.normalized_name,
        NULL::bigint AS entity_id,
        sum(x.events)::integer AS delta,
        (array_agg(x.name ORDER BY x.document_no, x.ordinal))[1] AS name,
        (array_agg(x.embedding ORDER BY x.document_no, x.ordinal))[1] AS embedding
    FROM (
        SELECT l.normalized_name, 1 AS events, l.name, l.embedding, l.document_no, l.ordinal
        FROM pg_temp.sag_merge_link AS l
        UNION ALL
        SELECT n.normalized_name, -1, n.name, n.embedding, NULL, NULL
        FROM sag.event AS e
        INNER JOIN sag.event_entity AS l ON l.collection_id = target AND l.event_id = e.event_id
        INNER JOIN sag.entity AS n ON n.collection_id = target AND n.entity_id = l.entity_id
        WHERE e.collection_id = target AND e.document_id = ANY(replaced_ids)
    ) AS x
    GROUP BY x.normalized_name;
    ALTER TABLE pg_temp.sag_merge_entity ADD PRIMARY KEY (normalized_name);
    ANALYZE pg_temp.sag_merge_link, pg_temp.sag_merge_alias, pg_temp.sag_merge_entity;

    -- One statement inserts and locks, in the order of the names: two statements, each in order,
    -- would not be in order together.
    WITH locked AS (
        INSERT INTO sag.entity AS n (collection_id, name, embedding, event_count)
        SELECT target, x.name, x.embedding, greatest(x.delta, 0)
        FROM pg_temp.sag_merge_entity AS x
        ORDER BY x.normalized_name COLLATE "C"
        ON CONFLICT (collection_id, normalized_name) DO UPDATE
        SET event_count = n.event_count + (
                SELECT x.delta FROM pg_temp.sag_merge_entity AS x
                WHERE x.normalized_name = excluded.normalized_name
            ),
            embedding = coalesce(n.embedding, excluded.embedding)
        RETURNING n.normalized_name, n.entity_id
    )
    UPDATE pg_temp.sag_merge_entity AS x SET entity_id = l.entity_id
    FROM locked AS l WHERE l.normalized_name = x.normalized_name;

    removed := sag.remove_events(target, replaced_ids);

    WITH new_chunk AS (
        INSERT INTO sag.chunk (
            collection_id, document_id, ordinal, heading_path, content, start_offset, end_offset,
            lexemes, embedding
        )
        SELECT
            target, m.document_id, b.ordinal, b.heading_path, b.content, b.start_offset,
            b.end_offset,
            CASE WHEN b.event_content IS NOT NULL
                THEN sag.text_vector(configuration, concat_ws('. ', b.event_title, b.content))
            END,
            CASE WHEN b.event_content IS NOT NULL AND l2_norm(b.chunk_embedding) > 0
                THEN b.chunk_embedding
            END
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
    SET event_total = s.event_total + t.events - removed.event_total,
        lexeme_total = s.lexeme_total + t.lexemes - removed.lexeme_total,
        embedding_total = s.embedding_total + t.embedded - removed.embedding_total,
        statement_total = s.statement_total + t.statements - removed.statement_total
    FROM (
        SELECT
            count(*) AS events,
            coalesce(sum(e.lexeme_count), 0) AS lexemes,
            count(*) FILTER (WHERE e.is_embedded) AS embedded,
            count(*) FILTER (WHERE e.is_statement) AS statements
        FROM new_event AS e
    ) AS t
    WHERE s.collection_id = target;

    INSERT INTO sag.entity_alias (collection_id, entity_id, name, origin)
    SELECT target, n.entity_id, min(a.name), 'extraction'
    FROM pg_temp.sag_merge_alias AS a
    INNER JOIN pg_temp.sag_merge_entity AS n ON n.normalized_name = a.normalized_alias_of
    GROUP BY n.entity_id, a.normalized_name
    ON CONFLICT DO NOTHING;

    PERFORM sag.remove_orphans(target, (
        SELECT array_agg(x.entity_id) FROM pg_temp.sag_merge_entity AS x WHERE x.delta < 0
    ));

    -- Those of a document for which a model failed are wanted again by the next run.
    PERFORM sag.forget_answers(target, ARRAY(
        SELECT b.answer_key
        FROM pg_temp.sag_batch_chunk AS b
        INNER JOIN pg_temp.sag_batch_document AS d ON d.document_no = b.document_no
        WHERE b.answer_key IS NOT NULL
        GROUP BY b.answer_key
        HAVING bool_and(d.is_complete)
    ));

    RETURN QUERY
    SELECT
        b.source,
        CASE WHEN m.is_new THEN 'added' WHEN NOT m.is_new THEN 'replaced' ELSE 'unchanged' END,
        (SELECT count(*)::integer FROM pg_temp.sag_batch_chunk AS c
        WHERE c.document_no = b.document_no)
    FROM pg_temp.sag_batch_document AS b
    LEFT JOIN pg_temp.sag_merge_document AS m ON m.document_no = b.document_no
    ORDER BY b.document_no;
    DROP TABLE pg_temp.sag_merge_document, pg_temp.sag_merge_link, pg_temp.sag_merge_alias,
    pg_temp.sag_merge_entity, pg_temp.sag_batch_document, pg_temp.sag_batch_chunk,
    pg_temp.sag_batch_entity;
END
$$;
COMMENT ON FUNCTION sag.merge_batch(text) IS
'Takes over the batch that sag.begin_batch() opened: adds new documents, replaces changed ones '
'with all that hung on them, forgets the answers they were made of, and says what became of '
'each. Any number may run at once.';
