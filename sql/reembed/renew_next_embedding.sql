CREATE OR REPLACE FUNCTION sag.renew_next_embedding(dimensions integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    holder text;
    remark text;
BEGIN
    FOREACH holder IN ARRAY ARRAY['event', 'chunk', 'entity'] LOOP
        SELECT col_description(a.attrelid, a.attnum) INTO remark
        FROM pg_attribute AS a
        WHERE a.attrelid = format('sag.%I', holder)::regclass AND a.attname = 'next_embedding';
        EXECUTE format('ALTER TABLE sag.%I DROP COLUMN next_embedding', holder);
        EXECUTE format(
            'ALTER TABLE sag.%I ADD COLUMN next_embedding halfvec%s', holder,
            '(' || renew_next_embedding.dimensions || ')'
        );
        EXECUTE format('COMMENT ON COLUMN sag.%I.next_embedding IS %L', holder, remark);
        IF renew_next_embedding.dimensions IS NOT NULL THEN
            EXECUTE format(
                'ALTER TABLE sag.%I ALTER COLUMN next_embedding SET STORAGE %s', holder,
                sag.vector_storage(renew_next_embedding.dimensions)
            );
        END IF;
    END LOOP;
    UPDATE sag.collection_statistic SET next_embedding_total = 0 WHERE next_embedding_total > 0;
END
$$;
COMMENT ON FUNCTION sag.renew_next_embedding(integer) IS
'Empties the columns next_embedding, which then take vectors of that length. Only catalogs are '
'written. The caller holds the locks of sag.lock_vectors().';
