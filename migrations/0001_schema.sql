-- The schema, the ledger of migrations and what later files need to find pgvector.
--
-- pgvector and pg_trgm may stand in any schema, and the extensions themselves are not ours to
-- create here: `sag-pg migrate` creates what is missing, in psql the administrator does.

CREATE SCHEMA sag;
COMMENT ON SCHEMA sag IS
'SAG: SQL-Retrieval Augmented Generation. Start with SELECT * FROM sag_retrieve(''question'').';

-- Operators such as <=> cannot be qualified legibly, so each file and each function runs with the
-- schemas of the two extensions in its search_path. Whoever may create functions there could have
-- them called in place of others, so those schemas should be nobody's but the administrator's.
CREATE FUNCTION sag.search_path() RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN (
    SELECT
        concat_ws(
            ', ', 'sag', string_agg(DISTINCT quote_ident(n.nspname), ', '), 'pg_temp'
        )
    FROM pg_catalog.pg_extension AS x
    INNER JOIN pg_catalog.pg_namespace AS n ON x.extnamespace = n.oid
    WHERE x.extname IN ('vector', 'pg_trgm')
);
COMMENT ON FUNCTION sag.search_path() IS
'The search_path under which sag''s files and functions run: sag, the schemas of the extensions '
'vector and pg_trgm, pg_temp last.';

CREATE TABLE sag.migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    program_version text NOT NULL
);
COMMENT ON TABLE sag.migration IS
'Ledger of the migrations that hold data; written by sag-pg migrate.';
COMMENT ON COLUMN sag.migration.version IS 'The file''s number; numbers are contiguous from 1.';
COMMENT ON COLUMN sag.migration.name IS 'The file''s name.';
COMMENT ON COLUMN sag.migration.sha256 IS 'SHA-256 of the file as it was applied, in hexadecimal.';
COMMENT ON COLUMN sag.migration.applied_at IS 'When it was applied.';
COMMENT ON COLUMN sag.migration.program_version IS 'Version of sag-pg that applied it.';

CREATE TABLE sag.applied_source (
    path text PRIMARY KEY,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE sag.applied_source IS
'The files of sql/ (functions and views, replaced by every migrate) as last applied.';
COMMENT ON COLUMN sag.applied_source.path IS 'Path below sql/.';
COMMENT ON COLUMN sag.applied_source.sha256 IS 'SHA-256 of the file as applied, in hexadecimal.';
COMMENT ON COLUMN sag.applied_source.applied_at IS 'When it was applied.';
