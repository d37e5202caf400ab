CREATE OR REPLACE FUNCTION sag.start_reembedding(
    model text, dimensions integer, patience_ms integer DEFAULT 200
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    present sag.embedding_space%ROWTYPE;
    under_way sag.reembedding%ROWTYPE;
    dependents text;
BEGIN
    PERFORM sag.require_maintainer();
    PERFORM sag.check_model(start_reembedding.model, start_reembedding.dimensions);
    LOCK TABLE sag.embedding_space IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO under_way FROM sag.reembedding;
    IF under_way.model = start_reembedding.model
        AND under_way.dimensions = start_reembedding.dimensions
    THEN
        RETURN;
    ELSIF under_way.model IS NOT NULL THEN
        RAISE EXCEPTION 'a change to model % with % dimensions is under way',
            quote_literal(under_way.model), under_way.dimensions
        USING ERRCODE = 'object_not_in_prerequisite_state',
        DETAIL = format('It was begun at %s.', under_way.started_at),
        HINT = 'Go on with that model, or give the change up first: sag-pg reembed --cancel';
    END IF;

    SELECT * INTO present FROM sag.embedding_space;
    IF present.model IS DISTINCT FROM start_reembedding.model
        OR present.dimensions IS DISTINCT FROM start_reembedding.dimensions
    THEN
        -- It would fail at the end otherwise, when all is paid for.
        SELECT string_agg(DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid), ', ')
        INTO dependents
        FROM pg_depend AS d
        INNER JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
            AND a.attrelid IN ('sag.event'::regclass, 'sag.chunk'::regclass, 'sag.entity'::regclass)
            AND a.attname IN ('embedding', 'next_embedding');
        IF dependents IS NOT NULL THEN
            RAISE EXCEPTION 'other objects depend on the columns that are to be replaced'
            USING ERRCODE = 'dependent_objects_still_exist',
            DETAIL = format('They are: %s.', dependents),
            HINT = 'Drop them, and make them anew when the change is done.';
        END IF;
        PERFORM sag.lock_collections();
        PERFORM sag.lock_vectors(start_reembedding.patience_ms);
        PERFORM sag.renew_next_embedding(start_reembedding.dimensions);
    ELSE
        PERFORM sag.lock_collections();
    END IF;
    INSERT INTO sag.reembedding (model, dimensions)
    VALUES (start_reembedding.model, start_reembedding.dimensions);
END
$$;
COMMENT ON FUNCTION sag.start_reembedding(text, integer, integer) IS
'Begins the change to another embedding model, or, with the one in use, a search for rows without '
'a vector; one that is under way goes on. From here on merges add their rows to sag.reembed_task; '
'the rest is sag-pg reembed. May fail with lock_not_available, see sag.lock_vectors(): try again.';
