CREATE OR REPLACE FUNCTION sag.set_embedding_space(model text, dimensions integer) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    present sag.embedding_space%ROWTYPE;
    under_way sag.reembedding%ROWTYPE;
    holder text;
BEGIN
    PERFORM sag.check_model(set_embedding_space.model, set_embedding_space.dimensions);
    -- Without a lock first: whoever ingests may do so without owning the tables.
    SELECT * INTO present FROM sag.embedding_space;
    IF present.model = set_embedding_space.model
        AND present.dimensions = set_embedding_space.dimensions
    THEN
        RETURN;
    END IF;
    IF NOT sag.is_maintainer() THEN
        RAISE EXCEPTION 'only the owner of sag''s tables sets the embedding space'
        USING ERRCODE = 'insufficient_privilege',
        DETAIL = CASE
            WHEN present.model IS NULL THEN 'It is not set yet.'
            ELSE format(
                'It is model %L with %s dimensions.', present.model, present.dimensions
            )
        END,
        HINT = format('Ask the owner for: SELECT sag.set_embedding_space(%L, %s);',
            set_embedding_space.model, set_embedding_space.dimensions);
    END IF;
    -- Two clients that start at once must not both alter the tables.
    LOCK TABLE sag.embedding_space IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO present FROM sag.embedding_space;
    IF present.model = set_embedding_space.model
        AND present.dimensions = set_embedding_space.dimensions
    THEN
        RETURN;
    END IF;
    SELECT * INTO under_way FROM sag.reembedding;
    IF under_way.model IS NOT NULL THEN
        RAISE EXCEPTION 'a change to model % with % dimensions is under way',
            quote_literal(under_way.model), under_way.dimensions
        USING ERRCODE = 'object_not_in_prerequisite_state',
        DETAIL = CASE
            WHEN present.model IS NULL THEN 'Until it is done there are no vectors.'
            ELSE format(
                'Until it is done, what is ingested gets vectors of %L with %s dimensions.',
                present.model, present.dimensions
            )
        END,
        HINT = 'See how far it is: sag-pg status';
    END IF;
    IF present.model IS NOT NULL AND (
        EXISTS (SELECT FROM sag.event WHERE embedding IS NOT NULL)
        OR EXISTS (SELECT FROM sag.chunk WHERE embedding IS NOT NULL)
        OR EXISTS (SELECT FROM sag.entity WHERE embedding IS NOT NULL)
    ) THEN
        RAISE EXCEPTION 'this database holds vectors of model % with % dimensions',
            quote_literal(present.model), present.dimensions
        USING ERRCODE = 'object_not_in_prerequisite_state',
        DETAIL = format(
            'Vectors of %L with %s dimensions cannot be compared with them.',
            set_embedding_space.model, set_embedding_space.dimensions
        ),
        HINT = format(
            'Use the model that made them, or have them all made anew by model %L: sag-pg reembed',
            set_embedding_space.model
        );
    END IF;
    FOREACH holder IN ARRAY ARRAY['event', 'chunk', 'entity'] LOOP
        IF to_regclass(format('sag.%I', holder || '_embedding')) IS NOT NULL THEN
            EXECUTE format('DROP INDEX sag.%I', holder || '_embedding');
        END IF;
        EXECUTE format(
            'ALTER TABLE sag.%I ALTER COLUMN embedding TYPE halfvec(%s), '
            'ALTER COLUMN embedding SET STORAGE %s',
            holder, set_embedding_space.dimensions,
            sag.vector_storage(set_embedding_space.dimensions)
        );
        EXECUTE format(
            'CREATE INDEX %I ON sag.%I USING hnsw (embedding halfvec_cosine_ops)',
            holder || '_embedding', holder
        );
        PERFORM sag.describe_vector_index(holder);
    END LOOP;
    DELETE FROM sag.embedding_space;
    INSERT INTO sag.embedding_space (model, dimensions)
    VALUES (set_embedding_space.model, set_embedding_space.dimensions);
END
$$;
COMMENT ON FUNCTION sag.set_embedding_space(text, integer) IS
'Fixes the model and the length of the vectors of this database and builds their indexes. '
'Repeating it changes nothing; another model is refused once there are vectors.';
