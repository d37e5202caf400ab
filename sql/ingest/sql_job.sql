CREATE OR REPLACE FUNCTION sag.sql_job(target bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    sql_job_id bigint;
BEGIN
    SELECT j.job_id INTO sql_job_id
    FROM sag.ingest_job AS j WHERE j.collection_id = target AND j.origin = 'sql';
    IF sql_job_id IS NULL THEN
        INSERT INTO sag.ingest_job (collection_id, origin, sealed_at)
        VALUES (target, 'sql', now())
        ON CONFLICT (collection_id) WHERE origin = 'sql' DO NOTHING
        RETURNING job_id INTO sql_job_id;
    END IF;
    IF sql_job_id IS NULL THEN
        RETURN sag.sql_job(target);
    END IF;
    RETURN sql_job_id;
END
$$;
COMMENT ON FUNCTION sag.sql_job(bigint) IS
'The one job of a collection that takes what SQL clients queue. It is made with the collection.';
-- Collections of an earlier version have none yet.
DO $$
BEGIN
    PERFORM sag.sql_job(c.collection_id) FROM sag.collection AS c;
END
$$;
