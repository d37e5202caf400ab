CREATE OR REPLACE FUNCTION sag.merge_chunks(
    target bigint,
    chosen_event_ids bigint[],
    direct_chunk_ids bigint[],
    candidate_event_ids bigint[],
    output_limit integer DEFAULT 10
)
RETURNS TABLE (rank integer, chunk_id bigint, event_id bigint, found_by text)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 10
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH offered AS (
        SELECT e.chunk_id, 1 AS turn, c.no, TRUE AS is_event, FALSE AS is_direct
        FROM unnest(merge_chunks.chosen_event_ids) WITH ORDINALITY AS c (event_id, no)
        INNER JOIN sag.event AS e
            ON e.collection_id = merge_chunks.target AND e.event_id = c.event_id
        UNION ALL
        SELECT d.chunk_id, 2, d.no, FALSE, TRUE
        FROM unnest(merge_chunks.direct_chunk_ids) WITH ORDINALITY AS d (chunk_id, no)
        UNION ALL
        -- Where both are short of the limit, the candidates fill up.
        SELECT e.chunk_id, 3, c.no, TRUE, FALSE
        FROM unnest(merge_chunks.candidate_event_ids[:merge_chunks.output_limit * 2])
            WITH ORDINALITY AS c (event_id, no)
        INNER JOIN sag.event AS e
            ON e.collection_id = merge_chunks.target AND e.event_id = c.event_id
    ),
    merged AS (
        SELECT
            o.chunk_id,
            min(ARRAY[o.turn, o.no]) AS place,
            bool_or(o.is_event) AS is_event,
            bool_or(o.is_direct) AS is_direct
        FROM offered AS o
        GROUP BY o.chunk_id
        ORDER BY 2
        LIMIT merge_chunks.output_limit
    )
    SELECT
        row_number() OVER (ORDER BY m.place)::integer,
        m.chunk_id,
        e.event_id,
        CASE
            WHEN m.is_event AND m.is_direct THEN 'both'
            WHEN m.is_event THEN 'event'
            ELSE 'direct'
        END
    FROM merged AS m
    INNER JOIN sag.event AS e
        ON e.collection_id = merge_chunks.target AND e.chunk_id = m.chunk_id
    ORDER BY 1;
END
$$;
COMMENT ON FUNCTION sag.merge_chunks(bigint, bigint[], bigint[], bigint[], integer) IS
'C_out: the chunks of the chosen events in their order, then direct chunks, then further '
'candidates; no chunk twice.';
