CREATE OR REPLACE FUNCTION public.sag_trace(
    question text,
    collection text DEFAULT 'default',
    embedding halfvec DEFAULT NULL,
    entities text[] DEFAULT NULL,
    entity_embeddings halfvec[] DEFAULT NULL,
    filter jsonpath DEFAULT NULL,
    options jsonb DEFAULT '{}'
)
RETURNS TABLE (
    stage text, rank integer, method text, name text, entity text, hop integer,
    score double precision, entity_id bigint, event_id bigint, chunk_id bigint, source text,
    elapsed_ms double precision, mode text
)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    -- Resolved first: joined to sag.collection, a name that is none would find nothing and no
    -- fault.
    target constant bigint := sag.collection_key(sag_trace.collection);
BEGIN
    RETURN QUERY
    SELECT
        s.stage, s.rank, s.method, s.name,
        coalesce(n.name, (
            SELECT string_agg(m.name, ' > ' ORDER BY i.no)
            FROM unnest(s.entity_ids) WITH ORDINALITY AS i (entity_id, no)
            INNER JOIN sag.entity AS m
                ON m.collection_id = target AND m.entity_id = i.entity_id
        )),
        s.hop, s.score, s.entity_id, s.event_id, s.chunk_id, d.source, s.elapsed_ms, s.mode
    FROM sag.retrieve_stages(
        sag_trace.question, sag_trace.collection, sag_trace.embedding, sag_trace.entities,
        sag_trace.entity_embeddings, sag_trace.filter, sag_trace.options, TRUE
    ) WITH ORDINALITY AS s (
        stage, rank, method, name, entity_id, event_id, chunk_id, hop, score, entity_ids,
        elapsed_ms, mode, no
    )
    LEFT JOIN sag.entity AS n ON n.collection_id = target AND n.entity_id = s.entity_id
    LEFT JOIN sag.chunk AS c ON c.collection_id = target AND c.chunk_id = s.chunk_id
    LEFT JOIN sag.document AS d
        ON d.collection_id = target AND d.document_id = c.document_id
    ORDER BY s.no;
END
$$;
COMMENT ON FUNCTION public.sag_trace(text, text, halfvec, text[], halfvec[], jsonpath, jsonb) IS
'Every stage''s rows for a question, in the order of the pipeline. Rank 0 of a stage says how many '
'rows it had, what time it took and, where a model failed, why.';
