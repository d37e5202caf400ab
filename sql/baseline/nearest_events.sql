CREATE OR REPLACE FUNCTION sag.nearest_events(embedding halfvec, result_limit integer DEFAULT 100)
RETURNS TABLE (event_id bigint)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE ROWS 100
SET search_path FROM CURRENT
SET random_page_cost = 1.1
AS $$
#variable_conflict use_column
DECLARE
    setting text := current_setting('hnsw.ef_search', TRUE);
BEGIN
    PERFORM set_config('hnsw.ef_search', nearest_events.result_limit::text, TRUE);
    RETURN QUERY
    SELECT e.event_id FROM sag.event AS e
    ORDER BY e.embedding <=> nearest_events.embedding
    LIMIT nearest_events.result_limit;
    PERFORM set_config('hnsw.ef_search', coalesce(nullif(setting, ''), '40'), TRUE);
END
$$;
COMMENT ON FUNCTION sag.nearest_events(halfvec, integer) IS
'A bare scan of the vector index over all collections: what any vector search costs at least. '
'sag-pg eval measures it as the floor of latency.';
