-- What models answered for documents that are not merged yet, and who made the events of those that
-- are.

SELECT set_config('search_path', sag.search_path(), TRUE);

-- Unlike the other tables it goes with its collection: no count hangs on it.
CREATE TABLE sag.model_answer (
    collection_id bigint NOT NULL REFERENCES sag.collection ON DELETE CASCADE,
    answer_key bytea NOT NULL,
    extractor text NOT NULL,
    answer jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (collection_id, answer_key)
);
COMMENT ON TABLE sag.model_answer IS
'What a model answered for passages of documents that are not merged yet, or not without a '
'failure: a run that goes on does not pay for it again. May be emptied while no ingest runs.';
COMMENT ON COLUMN sag.model_answer.collection_id IS 'The collection that is ingested into.';
COMMENT ON COLUMN sag.model_answer.answer_key IS
'SHA-256 over the extractor''s name and the passage: its title, headings and text.';
COMMENT ON COLUMN sag.model_answer.extractor IS 'Model and version of the prompt.';
COMMENT ON COLUMN sag.model_answer.answer IS 'The event and the entities that were read in it.';
COMMENT ON COLUMN sag.model_answer.created_at IS 'When it arrived.';

ALTER TABLE sag.document ADD COLUMN extractor text;
COMMENT ON COLUMN sag.document.extractor IS
'What made the document''s events: a model and the version of its prompt, or local models or '
'rules. NULL where that was not written down yet.';
