CREATE OR REPLACE FUNCTION sag.reembedding_status() RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    facts jsonb;
BEGIN
    SELECT jsonb_build_object(
        'model', r.model,
        'dimensions', r.dimensions,
        'present_model', s.model,
        'present_dimensions', s.dimensions,
        'started_at', r.started_at,
        'phase', CASE
            WHEN r.row_total IS NULL THEN 'listing'
            WHEN t.remaining > 0 THEN 'embedding'
            ELSE 'indexing'
        END,
        'total', greatest(r.row_total, t.remaining),
        'remaining', t.remaining,
        'at_work', EXISTS (
            SELECT FROM pg_locks AS l
            INNER JOIN pg_database AS d ON d.oid = l.database
            WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted
                AND l.classid = 'pg_class'::regclass AND l.objid = 'sag.reembedding'::regclass
                AND l.objsubid = 2
        )
    ) INTO facts
    FROM sag.reembedding AS r
    LEFT JOIN sag.embedding_space AS s ON TRUE
    CROSS JOIN (SELECT count(*) AS remaining FROM sag.reembed_task) AS t;
    RETURN facts;
END
$$;
COMMENT ON FUNCTION sag.reembedding_status() IS
'How far the change of the embedding model is, in rows, and whether a process is at work on it; '
'NULL where none is under way.';
