-- Collections, documents, chunks, events, entities and the links between the last two.
--
-- collection_id leads every primary key and is part of every foreign key and unique constraint, so
-- that the schema can be sharded by it. It leads no other index: of a collection that ANALYZE has
-- not seen yet the planner expects one row, and would take an index that has nothing but the
-- collection in common with the query for as good as the right one.
--
-- Nothing cascades: event_count and the statistics are kept by the functions in sql/ingest, and a
-- DELETE around them is refused rather than leaving them wrong.

SELECT set_config('search_path', sag.search_path(), TRUE);

CREATE TABLE sag.collection (
    collection_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (char_length(name) BETWEEN 1 AND 200),
    text_search_configuration text NOT NULL DEFAULT 'pg_catalog.english',
    parameters jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(parameters) = 'object'),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE sag.collection IS 'A corpus (a tenant). The collection "default" always exists.';
COMMENT ON COLUMN sag.collection.collection_id IS 'Key; the distribution column on Citus.';
COMMENT ON COLUMN sag.collection.name IS 'The name that users write.';
COMMENT ON COLUMN sag.collection.text_search_configuration IS
'Text search configuration for lexemes, by name; fixed once the collection holds documents.';
COMMENT ON COLUMN sag.collection.parameters IS
'Overrides of retrieval parameters for this collection; see sag.set_parameter().';
COMMENT ON COLUMN sag.collection.created_at IS 'When the collection was made.';

CREATE TABLE sag.collection_statistic (
    collection_id bigint PRIMARY KEY REFERENCES sag.collection,
    event_total bigint NOT NULL DEFAULT 0 CHECK (event_total >= 0),
    lexeme_total bigint NOT NULL DEFAULT 0 CHECK (lexeme_total >= 0),
    embedding_total bigint NOT NULL DEFAULT 0 CHECK (embedding_total >= 0),
    statement_total bigint NOT NULL DEFAULT 0 CHECK (statement_total >= 0)
);
COMMENT ON TABLE sag.collection_statistic IS
'Totals of a collection that ranking needs at every question; kept by each merge and deletion.';
COMMENT ON COLUMN sag.collection_statistic.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.collection_statistic.event_total IS 'Number of events; the N of idf.';
COMMENT ON COLUMN sag.collection_statistic.lexeme_total IS
'Sum of the events'' distinct lexemes; over event_total it is the average length.';
COMMENT ON COLUMN sag.collection_statistic.embedding_total IS 'Number of events with an embedding.';
COMMENT ON COLUMN sag.collection_statistic.statement_total IS
'Number of events whose text is not their chunk''s own; without any, chunks need no search.';

CREATE TABLE sag.embedding_space (
    singleton boolean PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    model text NOT NULL,
    dimensions integer NOT NULL CHECK (dimensions BETWEEN 1 AND 4000),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE sag.embedding_space IS
'The one model whose vectors this database holds; set by sag.set_embedding_space().';
COMMENT ON COLUMN sag.embedding_space.singleton IS 'Keeps the table to one row.';
COMMENT ON COLUMN sag.embedding_space.model IS 'The model''s name, as its provider gives it.';
COMMENT ON COLUMN sag.embedding_space.dimensions IS 'Length of each vector.';
COMMENT ON COLUMN sag.embedding_space.created_at IS 'When it was set.';

CREATE TABLE sag.document (
    collection_id bigint NOT NULL REFERENCES sag.collection,
    document_id bigint GENERATED ALWAYS AS IDENTITY,
    source text NOT NULL CHECK (octet_length(source) BETWEEN 1 AND 2000),
    title text NOT NULL DEFAULT '',
    metadata jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
    content_hash bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (collection_id, document_id),
    UNIQUE (source, collection_id)
);
CREATE INDEX document_metadata ON sag.document
USING gin (metadata jsonb_path_ops) WITH (fastupdate = off);
COMMENT ON TABLE sag.document IS 'A document as it was ingested.';
COMMENT ON COLUMN sag.document.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.document.document_id IS 'Key within the collection.';
COMMENT ON COLUMN sag.document.source IS
'Path, URI or the caller''s key; unique in the collection.';
COMMENT ON COLUMN sag.document.title IS 'Title; empty where there is none.';
COMMENT ON COLUMN sag.document.metadata IS 'What filters ask for: metadata @@ filter.';
COMMENT ON COLUMN sag.document.content_hash IS
'SHA-256 over text, title, metadata and the way it was processed; equal means nothing to do.';
COMMENT ON COLUMN sag.document.created_at IS 'When the source was first ingested.';
COMMENT ON COLUMN sag.document.updated_at IS 'When its present content was ingested.';
COMMENT ON INDEX sag.document_metadata IS 'Serves filters on metadata.';

CREATE TABLE sag.chunk (
    collection_id bigint NOT NULL,
    chunk_id bigint GENERATED ALWAYS AS IDENTITY,
    document_id bigint NOT NULL,
    ordinal integer NOT NULL CHECK (ordinal >= 0),
    heading_path text[] NOT NULL DEFAULT '{}',
    content text NOT NULL,
    start_offset bigint NOT NULL CHECK (start_offset >= 0),
    end_offset bigint NOT NULL,
    lexemes tsvector,
    embedding halfvec,
    PRIMARY KEY (collection_id, chunk_id),
    UNIQUE (document_id, ordinal, collection_id),
    FOREIGN KEY (collection_id, document_id) REFERENCES sag.document,
    CHECK (end_offset >= start_offset)
);
CREATE INDEX chunk_lexemes ON sag.chunk
USING gin (lexemes) WITH (fastupdate = off) WHERE lexemes IS NOT NULL;
COMMENT ON TABLE sag.chunk IS 'A piece of a document: what retrieval returns.';
COMMENT ON COLUMN sag.chunk.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.chunk.chunk_id IS 'Key within the collection.';
COMMENT ON COLUMN sag.chunk.document_id IS 'The document it is a piece of.';
COMMENT ON COLUMN sag.chunk.ordinal IS 'Place within the document, from 0.';
COMMENT ON COLUMN sag.chunk.heading_path IS 'Headings above the chunk, outermost first.';
COMMENT ON COLUMN sag.chunk.content IS 'The text: document[start_offset:end_offset].';
COMMENT ON COLUMN sag.chunk.start_offset IS 'First character in the document, from 0.';
COMMENT ON COLUMN sag.chunk.end_offset IS 'Character after the last one.';
COMMENT ON COLUMN sag.chunk.lexemes IS
'Lexemes of title, headings and content; NULL where the event''s text is the chunk''s own.';
COMMENT ON COLUMN sag.chunk.embedding IS
'Vector of the chunk; NULL where the event''s text is the chunk''s own and so holds it.';
COMMENT ON INDEX sag.chunk_lexemes IS 'Serves the direct chunks of a question without embedding.';

CREATE TABLE sag.event (
    collection_id bigint NOT NULL,
    event_id bigint GENERATED ALWAYS AS IDENTITY,
    chunk_id bigint NOT NULL,
    document_id bigint NOT NULL,
    title text NOT NULL DEFAULT '',
    content text,
    lexemes tsvector NOT NULL,
    lexeme_count integer NOT NULL GENERATED ALWAYS AS (length(lexemes)) STORED,
    embedding halfvec,
    PRIMARY KEY (collection_id, event_id),
    UNIQUE (chunk_id, collection_id),
    FOREIGN KEY (collection_id, chunk_id) REFERENCES sag.chunk,
    FOREIGN KEY (collection_id, document_id) REFERENCES sag.document
);
CREATE INDEX event_document ON sag.event (document_id, collection_id);
CREATE INDEX event_lexemes ON sag.event USING gin (lexemes) WITH (fastupdate = off);
COMMENT ON TABLE sag.event IS
'The one event of a chunk: a statement that keeps its whole meaning. With its entities it is a '
'latent hyperedge.';
COMMENT ON COLUMN sag.event.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.event.event_id IS 'Key within the collection.';
COMMENT ON COLUMN sag.event.chunk_id IS 'The chunk whose event it is; exactly one event a chunk.';
COMMENT ON COLUMN sag.event.document_id IS 'The chunk''s document, so that filters need one join.';
COMMENT ON COLUMN sag.event.title IS 'Short name of the event.';
COMMENT ON COLUMN sag.event.content IS
'The statement; NULL where the chunk''s own text is the event, which is not kept twice.';
COMMENT ON COLUMN sag.event.lexemes IS 'Lexemes of title and content.';
COMMENT ON COLUMN sag.event.lexeme_count IS
'Number of distinct lexemes: the length in lexical scores.';
COMMENT ON COLUMN sag.event.embedding IS
'Vector of title and content; NULL where the model does not know the script.';
COMMENT ON INDEX sag.event_document IS 'Serves deletion of a document and filters that match few.';
COMMENT ON INDEX sag.event_lexemes IS 'Serves path B of the seeds without an embedding.';

CREATE TABLE sag.entity_type (
    name text PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 60),
    description text NOT NULL
);
COMMENT ON TABLE sag.entity_type IS
'Types that a link between entity and event may have: the paper''s eleven; add your own.';
COMMENT ON COLUMN sag.entity_type.name IS 'The type''s name.';
COMMENT ON COLUMN sag.entity_type.description IS 'What belongs to it; shown to language models.';
INSERT INTO sag.entity_type (name, description) VALUES
('time', 'Dates, years, periods and times of day'),
('location', 'Places: countries, cities, regions, rivers, buildings, addresses'),
('person', 'People by name'),
('organization', 'Companies, institutions, agencies, parties, teams'),
('group', 'Peoples, nationalities, religions, communities, families'),
('subject', 'What a document or a section is about; fields of knowledge, topics'),
('work', 'Books, films, songs, paintings, laws, articles'),
('product', 'Goods, devices, software, vehicles, brands'),
('action', 'Happenings and deeds by name: wars, awards, acquisitions, conferences'),
('metric', 'Named quantities and measures'),
('tag', 'Whatever else serves as an index point');

CREATE TABLE sag.entity (
    collection_id bigint NOT NULL REFERENCES sag.collection,
    entity_id bigint GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    normalized_name text NOT NULL
    GENERATED ALWAYS AS (sag.normalize_entity(name)) STORED
    CHECK (char_length(normalized_name) BETWEEN 2 AND 400),
    event_count integer NOT NULL DEFAULT 0 CHECK (event_count >= 0),
    lexemes tsvector GENERATED ALWAYS AS (sag.text_vector('pg_catalog.simple', name)) STORED,
    embedding halfvec,
    PRIMARY KEY (collection_id, entity_id),
    UNIQUE (normalized_name, collection_id)
) WITH (fillfactor = 80);
CREATE INDEX entity_trigram ON sag.entity
USING gin (normalized_name gin_trgm_ops) WITH (fastupdate = off);
CREATE INDEX entity_lexemes ON sag.entity USING gin (lexemes) WITH (fastupdate = off);
COMMENT ON TABLE sag.entity IS
'An index point, unique by its normalised name whatever its type: a chain must not break where '
'extraction calls one thing by two types.';
COMMENT ON COLUMN sag.entity.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.entity.entity_id IS 'Key within the collection.';
COMMENT ON COLUMN sag.entity.name IS 'The name as first seen.';
COMMENT ON COLUMN sag.entity.normalized_name IS 'The identity: sag.normalize_entity(name).';
COMMENT ON COLUMN sag.entity.event_count IS 'Number of events that carry it, exact at any time.';
COMMENT ON COLUMN sag.entity.lexemes IS 'Words of the name, unstemmed.';
COMMENT ON COLUMN sag.entity.embedding IS
'Vector of the name; NULL where entities are not embedded.';
COMMENT ON INDEX sag.entity_trigram IS 'Serves linking of misspelt names.';
COMMENT ON INDEX sag.entity_lexemes IS 'Serves linking of names that are part of a longer one.';

CREATE TABLE sag.entity_alias (
    collection_id bigint NOT NULL,
    entity_id bigint NOT NULL,
    name text NOT NULL,
    normalized_name text NOT NULL
    GENERATED ALWAYS AS (sag.normalize_entity(name)) STORED
    CHECK (char_length(normalized_name) BETWEEN 2 AND 400),
    origin text NOT NULL DEFAULT 'person' CHECK (origin IN ('person', 'extraction')),
    PRIMARY KEY (collection_id, normalized_name, entity_id),
    FOREIGN KEY (collection_id, entity_id) REFERENCES sag.entity
);
CREATE INDEX entity_alias_entity ON sag.entity_alias (entity_id, collection_id);
COMMENT ON TABLE sag.entity_alias IS 'A further name of an entity.';
COMMENT ON COLUMN sag.entity_alias.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.entity_alias.entity_id IS 'The entity that the name means.';
COMMENT ON COLUMN sag.entity_alias.name IS 'The further name.';
COMMENT ON COLUMN sag.entity_alias.normalized_name IS 'sag.normalize_entity(name).';
COMMENT ON COLUMN sag.entity_alias.origin IS 'Who gave it: a person, or extraction.';
COMMENT ON INDEX sag.entity_alias_entity IS 'Serves deletion of an entity.';

CREATE TABLE sag.event_entity (
    collection_id bigint NOT NULL,
    entity_id bigint NOT NULL,
    event_id bigint NOT NULL,
    is_subject boolean NOT NULL DEFAULT FALSE,
    type text NOT NULL DEFAULT 'tag' REFERENCES sag.entity_type,
    role text,
    PRIMARY KEY (collection_id, entity_id, event_id) INCLUDE (is_subject),
    FOREIGN KEY (collection_id, entity_id) REFERENCES sag.entity,
    FOREIGN KEY (collection_id, event_id) REFERENCES sag.event
);
CREATE UNIQUE INDEX event_entity_event ON sag.event_entity (event_id, entity_id, collection_id)
INCLUDE (is_subject);
COMMENT ON TABLE sag.event_entity IS
'Which event carries which entity. Its two B-trees make both directions of the join index-only.';
COMMENT ON COLUMN sag.event_entity.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.event_entity.entity_id IS 'The entity.';
COMMENT ON COLUMN sag.event_entity.event_id IS 'The event.';
COMMENT ON COLUMN sag.event_entity.is_subject IS 'Whether the event is about the entity.';
COMMENT ON COLUMN sag.event_entity.type IS 'What kind of thing the entity is in this event.';
COMMENT ON COLUMN sag.event_entity.role IS 'What the entity does in the event, where it is known.';
COMMENT ON INDEX sag.event_entity_event IS 'Serves the reverse join, from events to entities.';

CREATE TABLE sag.parameter (
    name text PRIMARY KEY,
    type text NOT NULL CHECK (type IN ('integer', 'real', 'boolean', 'text')),
    default_value jsonb NOT NULL,
    database_value jsonb,
    minimum double precision,
    maximum double precision,
    choices text[],
    unit text,
    meaning text NOT NULL
);
COMMENT ON TABLE sag.parameter IS
'Every retrieval parameter. A value is taken from the call''s options, else from the collection, '
'else from database_value, else from default_value.';
COMMENT ON COLUMN sag.parameter.name IS 'The parameter''s name.';
COMMENT ON COLUMN sag.parameter.type IS 'Type of its value.';
COMMENT ON COLUMN sag.parameter.default_value IS
'The program''s default; renewed by every migrate.';
COMMENT ON COLUMN sag.parameter.database_value IS 'The value for this database; kept by migrate.';
COMMENT ON COLUMN sag.parameter.minimum IS 'Smallest value allowed.';
COMMENT ON COLUMN sag.parameter.maximum IS 'Largest value allowed.';
COMMENT ON COLUMN sag.parameter.choices IS 'Values allowed for a text.';
COMMENT ON COLUMN sag.parameter.unit IS 'What the value counts.';
COMMENT ON COLUMN sag.parameter.meaning IS 'What the parameter does.';

CREATE TABLE sag.ingest_job (
    collection_id bigint NOT NULL REFERENCES sag.collection,
    job_id bigint GENERATED ALWAYS AS IDENTITY,
    state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished', 'failed')),
    started_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (collection_id, job_id)
);
COMMENT ON TABLE sag.ingest_job IS 'A run of the ingest.';
COMMENT ON COLUMN sag.ingest_job.collection_id IS 'The collection it ingests into.';
COMMENT ON COLUMN sag.ingest_job.job_id IS 'Key within the collection.';
COMMENT ON COLUMN sag.ingest_job.state IS
'running, finished, or failed; one that was killed stays running.';
COMMENT ON COLUMN sag.ingest_job.started_at IS 'When it began.';
COMMENT ON COLUMN sag.ingest_job.finished_at IS 'When it ended; NULL while it runs.';

CREATE TABLE sag.ingest_task (
    collection_id bigint NOT NULL,
    job_id bigint NOT NULL,
    task_id bigint GENERATED ALWAYS AS IDENTITY,
    source text NOT NULL,
    state text NOT NULL CHECK (state IN ('added', 'replaced', 'unchanged', 'failed')),
    chunk_count integer NOT NULL DEFAULT 0,
    error text,
    finished_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (collection_id, job_id, task_id),
    FOREIGN KEY (collection_id, job_id) REFERENCES sag.ingest_job
);
COMMENT ON TABLE sag.ingest_task IS 'What became of each document of an ingest.';
COMMENT ON COLUMN sag.ingest_task.collection_id IS 'The collection.';
COMMENT ON COLUMN sag.ingest_task.job_id IS 'The run of the ingest.';
COMMENT ON COLUMN sag.ingest_task.task_id IS 'Key within the run.';
COMMENT ON COLUMN sag.ingest_task.source IS 'The document''s source.';
COMMENT ON COLUMN sag.ingest_task.state IS 'What became of it.';
COMMENT ON COLUMN sag.ingest_task.chunk_count IS 'Chunks that it has now.';
COMMENT ON COLUMN sag.ingest_task.error IS 'Why it failed.';
COMMENT ON COLUMN sag.ingest_task.finished_at IS 'When it was dealt with.';

INSERT INTO sag.collection (name) VALUES ('default');
INSERT INTO sag.collection_statistic (collection_id) SELECT collection_id FROM sag.collection;
