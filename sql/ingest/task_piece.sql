CREATE OR REPLACE FUNCTION sag.task_piece(collection bigint, task bigint, piece_no integer)
RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
BEGIN
    RETURN (
        SELECT p.content FROM sag.ingest_piece AS p
        WHERE p.collection_id = task_piece.collection AND p.task_id = task_piece.task
            AND p.piece_no = task_piece.piece_no
    );
END
$$;
COMMENT ON FUNCTION sag.task_piece(bigint, bigint, integer) IS
'One piece of a queued document''s text; NULL after the last.';
