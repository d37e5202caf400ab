CREATE OR REPLACE FUNCTION sag.reembed_batch(
    row_limit integer DEFAULT 256, byte_limit bigint DEFAULT 1048576
)
RETURNS TABLE (
    collection_id bigint, kind text, row_id bigint, source text, title text, heading_path text[],
    content text, event_title text, statement text
)
LANGUAGE plpgsql STABLE ROWS 256
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint;
    holder text;
    only_missing boolean := sag.fills_missing();
BEGIN
    SELECT t.collection_id, t.kind INTO target, holder
    FROM sag.reembed_task AS t
    ORDER BY t.collection_id, t.kind
    LIMIT 1;
    RETURN QUERY
    WITH task AS MATERIALIZED (
        SELECT t.row_id FROM sag.reembed_task AS t
        WHERE t.collection_id = target AND t.kind = holder
        ORDER BY t.row_id
        LIMIT reembed_batch.row_limit
    ),
    found AS MATERIALIZED (
        SELECT
            e.event_id AS row_id, d.source, d.title, c.heading_path, c.content,
            e.title AS event_title, e.content AS statement
        FROM task AS t
        INNER JOIN sag.event AS e ON e.collection_id = target AND e.event_id = t.row_id
        INNER JOIN sag.chunk AS c ON c.collection_id = target AND c.chunk_id = e.chunk_id
        INNER JOIN sag.document AS d ON d.collection_id = target AND d.document_id = e.document_id
        WHERE holder = 'event' AND (e.embedding IS NULL OR NOT only_missing)
        UNION ALL
        SELECT c.chunk_id, d.source, d.title, c.heading_path, c.content, NULL, NULL
        FROM task AS t
        INNER JOIN sag.chunk AS c ON c.collection_id = target AND c.chunk_id = t.row_id
        INNER JOIN sag.document AS d ON d.collection_id = target AND d.document_id = c.document_id
        WHERE holder = 'chunk' AND (c.embedding IS NULL OR NOT only_missing)
        UNION ALL
        SELECT n.entity_id, NULL, '', '{}', n.name, NULL, NULL
        FROM task AS t
        INNER JOIN sag.entity AS n ON n.collection_id = target AND n.entity_id = t.row_id
        WHERE holder = 'entity' AND (n.embedding IS NULL OR NOT only_missing)
    ),
    measured AS (
        SELECT
            t.row_id, f.source, f.title, f.heading_path, f.content, f.event_title, f.statement,
            sum(coalesce(pg_column_size(f.content), 0) + coalesce(pg_column_size(f.statement), 0))
                OVER (ORDER BY t.row_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM task AS t
        LEFT JOIN found AS f ON f.row_id = t.row_id
    )
    SELECT
        target, holder, m.row_id, m.source, m.title, m.heading_path, m.content, m.event_title,
        m.statement
    FROM measured AS m
    WHERE coalesce(m.before, 0) < reembed_batch.byte_limit
    ORDER BY m.row_id;
END
$$;
COMMENT ON FUNCTION sag.reembed_batch(integer, bigint) IS
'The next rows of sag.reembed_task, all of one collection and table, with what their texts are '
'made of, up to both limits, at least one. Without content: the row is gone, or needs no vector.';
