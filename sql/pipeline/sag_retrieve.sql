CREATE OR REPLACE FUNCTION public.sag_retrieve(
    question text,
    collection text DEFAULT 'default',
    embedding halfvec DEFAULT NULL,
    entities text[] DEFAULT NULL,
    entity_embeddings halfvec[] DEFAULT NULL,
    filter jsonpath DEFAULT NULL,
    options jsonb DEFAULT '{}'
)
RETURNS TABLE (
    rank integer, chunk_id bigint, source text, title text, content text, heading_path text[],
    start_offset bigint, end_offset bigint, score double precision, found_by text, event text,
    hop integer, via text[], metadata jsonb, mode text
)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE ROWS 10
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    -- Resolved first: joined to sag.collection, a name that is none would find nothing and no
    -- fault.
    target constant bigint := sag.collection_key(sag_retrieve.collection);
BEGIN
    RETURN QUERY
    SELECT
        s.rank, c.chunk_id, d.source, d.title, c.content, c.heading_path, c.start_offset,
        c.end_offset, s.score, s.method, coalesce(e.content, e.title), s.hop,
        ARRAY(
            SELECT n.name
            FROM unnest(s.entity_ids) WITH ORDINALITY AS i (entity_id, no)
            INNER JOIN sag.entity AS n
                ON n.collection_id = d.collection_id AND n.entity_id = i.entity_id
            ORDER BY i.no
        ),
        d.metadata, s.mode
    FROM sag.retrieve_stages(
        sag_retrieve.question, sag_retrieve.collection, sag_retrieve.embedding,
        sag_retrieve.entities, sag_retrieve.entity_embeddings, sag_retrieve.filter,
        sag_retrieve.options, FALSE
    ) AS s
    -- Outer joins, though nothing is missing: an inner join with an empty table would be answered
    -- without running the stages, whose checks are the only ones.
    LEFT JOIN sag.chunk AS c ON c.collection_id = target AND c.chunk_id = s.chunk_id
    LEFT JOIN sag.document AS d
        ON d.collection_id = target AND d.document_id = c.document_id
    LEFT JOIN sag.event AS e ON e.collection_id = target AND e.event_id = s.event_id
    ORDER BY s.rank;
END
$$;
COMMENT ON FUNCTION public.sag_retrieve(text, text, halfvec, text[], halfvec[], jsonpath, jsonb) IS
'Evidence for a question: SELECT * FROM sag_retrieve(''question''). Where no embedding is given, '
'the model gateway makes one; without a gateway lexemes are searched. mode says what was done. '
'entities adds names to those read from the question, filter is matched against document metadata, '
'options are parameters (sag.parameter).';
