-- Two group roles, to be granted to those who retrieve and to those who ingest. Without the right
-- to create roles an administrator creates them, and the next migrate grants to them.
DO $$
DECLARE
    grantee text;
    extension_schema text;
BEGIN
    FOREACH grantee IN ARRAY ARRAY['sag_reader', 'sag_writer'] LOOP
        IF to_regrole(grantee) IS NULL THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', grantee);
            EXCEPTION
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'role % is missing and cannot be created', grantee
                    USING HINT = format(
                        'Ask an administrator for: CREATE ROLE %I NOLOGIN;', grantee
                    );
                    CONTINUE;
                -- Another database of this cluster was migrated in the same moment.
                WHEN duplicate_object OR unique_violation THEN
                    NULL;
            END;
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA sag TO %I', grantee);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA sag TO %I', grantee);
        -- The functions run with the caller's rights, and find the extensions' operators by them.
        FOR extension_schema IN
            SELECT DISTINCT n.nspname
            FROM pg_extension AS x
            INNER JOIN pg_namespace AS n ON n.oid = x.extnamespace
            WHERE x.extname IN ('vector', 'pg_trgm')
                AND NOT has_schema_privilege(grantee, n.oid, 'USAGE')
        LOOP
            BEGIN
                EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', extension_schema, grantee);
            EXCEPTION WHEN insufficient_privilege THEN
                NULL;
            END;
            -- Who may use it but not grant it gets no error above, a warning at most.
            IF NOT has_schema_privilege(grantee, extension_schema, 'USAGE') THEN
                RAISE NOTICE 'role % cannot use schema %', grantee, extension_schema
                USING HINT = format(
                    'Ask its owner for: GRANT USAGE ON SCHEMA %I TO %I;', extension_schema, grantee
                );
            END IF;
        END LOOP;
    END LOOP;
    PERFORM sag.share_gateway();
    IF to_regrole('sag_writer') IS NOT NULL THEN
        GRANT INSERT, UPDATE, DELETE ON
        sag.collection, sag.collection_statistic, sag.document, sag.chunk, sag.event,
        sag.entity, sag.entity_alias, sag.event_alias, sag.event_entity, sag.ingest_job,
        sag.ingest_task, sag.model_answer, sag.ingest_piece, sag.chunk_failure, sag.ingest_usage,
        sag.ingest_worker, sag.reembed_task
        TO sag_writer;
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA sag TO sag_writer;
    END IF;
END
$$;
