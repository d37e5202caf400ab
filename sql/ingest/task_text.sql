CREATE OR REPLACE FUNCTION sag.task_text(tasks bigint[], collection bigint)
RETURNS TABLE (task_id bigint, piece_no integer, content text)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.task_id, p.piece_no, p.content
    FROM sag.ingest_piece AS p
    WHERE p.collection_id = task_text.collection AND p.task_id = ANY(task_text.tasks);
END
$$;
COMMENT ON FUNCTION sag.task_text(bigint[], bigint) IS
'The texts of queued documents, for those small enough to be held in memory.';
