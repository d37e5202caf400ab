CREATE OR REPLACE FUNCTION sag.set_embedding_space(model text, dimensions integer) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    present sag.embedding_space%ROWTYPE;
    holder text;
    -- Inline vectors spare a detoast at each distance, as long as two rows fit on a page.
    storage text := CASE
        WHEN set_embedding_space.dimensions <= 1700 THEN 'PLAIN' ELSE 'EXTERNAL'
    END;
BEGIN
    IF coalesce(set_embedding_space.model, '') = ''
        OR coalesce(set_embedding_space.dimensions, 0) NOT BETWEEN 1 AND 4000
    THEN
        RAISE EXCEPTION 'no embedding space of model % and % dimensions',
            coalesce(quote_literal(set_embedding_space.model), 'NULL'),
            coalesce(set_embedding_space.dimensions::text, 'NULL')
        USING ERRCODE = 'invalid_parameter_value',
        DETAIL = 'A model has a name, and pgvector indexes halfvec up to 4000 dimensions.',
        HINT = 'Ask the provider for shorter vectors, or take another model.';
    END IF;
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
        HINT = 'Use the model that made them, or another database.';
    END IF;
    FOREACH holder IN ARRAY ARRAY['event', 'chunk', 'entity'] LOOP
        IF to_regclass(format('sag.%I', holder || '_embedding')) IS NOT NULL THEN
            EXECUTE format('DROP INDEX sag.%I', holder || '_embedding');
        END IF;
        EXECUTE format(
            'ALTER TABLE sag.%I ALTER COLUMN embedding TYPE halfvec(%s), '
            'ALTER COLUMN embedding SET STORAGE %s',
            holder, set_embedding_space.dimensions, storage
        );
        EXECUTE format(
            'CREATE INDEX %I ON sag.%I USING hnsw (embedding halfvec_cosine_ops)',
            holder || '_embedding', holder
        );
        EXECUTE format(
            'COMMENT ON INDEX sag.%I IS %L', holder || '_embedding',
            'Nearest neighbours by cosine; not used where a collection is small enough to be read.'
        );
    END LOOP;
    DELETE FROM sag.embedding_space;
    INSERT INTO sag.embedding_space (model, dimensions)
    VALUES (set_embedding_space.model, set_embedding_space.dimensions);
END
$$;
COMMENT ON FUNCTION sag.set_embedding_space(text, integer) IS
'Fixes the model and the length of the vectors of this database and builds their indexes. '
'Repeating it changes nothing; another model is refused once there are vectors.';
