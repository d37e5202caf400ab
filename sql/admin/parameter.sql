-- The program's parameters; what a DBA set in database_value stays.
INSERT INTO sag.parameter AS p (
    name, type, default_value, minimum, maximum, choices, unit, meaning
) VALUES
(
    'bridge_event_budget', 'integer', '4000', 0, 1000000, NULL, 'events',
    'Events that are looked through for bridges; an entity that would exceed it is skipped'
),
(
    'bridge_event_limit', 'integer', '20', 1, 200, NULL, 'events',
    'Strongest events that may be the other end of a bridge'
),
(
    'bridge_other_subject_weight', 'real', '1.0', 0, 10, NULL, NULL,
    'Worth of a bridge over an entity that the other event is about'
),
(
    'bridge_own_subject_weight', 'real', '1.3', 0, 10, NULL, NULL,
    'Worth of a bridge over an entity that the event itself is about'
),
(
    'bridge_weak_weight', 'real', '0.6', 0, 10, NULL, NULL,
    'Worth of a bridge over an entity that neither event is about'
),
(
    'bridge_weight', 'real', '0.6', 0, 10, NULL, NULL,
    'Weight of the best bridge in the score (lambda)'
),
(
    'candidate_limit', 'integer', '100', 1, 1000, NULL, 'events',
    'Candidates that ranking keeps (K_cand)'
),
(
    'choose', 'text', '"rank"', NULL, NULL, '{rank,model}', NULL,
    'Who makes the final choice: rank, the ranking stands; model, a language model at the gateway'
),
(
    'choose_candidate_limit', 'integer', '50', 1, 200, NULL, 'events',
    'Best candidates that the model is shown'
),
(
    'choose_event_limit', 'integer', '5', 1, 200, NULL, 'events',
    'Events that the model may choose; event_limit is for the rank'
),
(
    'cover_limit', 'integer', '50', 0, 200, NULL, 'events',
    'Best candidates that are put in order to cover the question; 0 leaves them by score'
),
(
    'cover_weight', 'real', '0.6', 0, 10, NULL, NULL,
    'Weight of the question''s words that are not covered yet (kappa)'
),
(
    'direct_chunk_limit', 'integer', '5', 0, 1000, NULL, 'chunks',
    'Chunks nearest to the question that are offered for the output (K_direct)'
),
(
    'ef_search', 'integer', '100', 1, 1000, NULL, 'vectors',
    'hnsw.ef_search for the vector scans; raised to the number of rows a scan must return'
),
(
    'entity_similarity', 'real', '0.9', 0, 1, NULL, 'similarity',
    'Least similarity at which an entity links to a neighbour'
),
(
    'event_limit', 'integer', '8', 0, 1000, NULL, 'events',
    'Events that are chosen from the candidates (K_event)'
),
(
    'event_similarity', 'real', '0.4', 0, 1, NULL, 'similarity',
    'Least similarity of a directly recalled seed event (tau)'
),
(
    'frontier_event_budget', 'integer', '2000', 1, 1000000, NULL, 'events',
    'Events that a hop, an entity or a set of lexemes may bring; what would exceed it is skipped'
),
(
    'frontier_limit', 'integer', '50', 0, 10000, NULL, 'entities',
    'Entities that a hop goes out from'
),
(
    'frontier_seed_limit', 'integer', '20', 1, 1000, NULL, 'events',
    'Best events whose entities make the frontier'
),
(
    'gateway_timeout', 'integer', '10000', 2000, 600000, NULL, 'ms',
    'Longest that a retrieval waits for answers of the model gateway, all calls together; the wait '
    'for a new connection to one that says nothing is ended by statement_timeout alone'
),
(
    'hops', 'integer', '1', 0, 4, NULL, 'hops',
    'Hops of the expansion (H)'
),
(
    'link_limit', 'integer', '5', 1, 100, NULL, 'entities',
    'Entities that one name may link to by vector, words or trigrams'
),
(
    'output_limit', 'integer', '10', 1, 1000, NULL, 'chunks',
    'Chunks that are returned (K_out)'
),
(
    'query_entity_cap', 'real', '1.5', 0, 10, NULL, NULL,
    'Most that the linked entities of one event count together'
),
(
    'query_entity_share', 'real', '0.02', 0, 1, NULL, 'share of events',
    'Entities more frequent than this, and in more than 20 events, are not read from the question'
),
(
    'query_entity_weight', 'real', '0.3', 0, 10, NULL, NULL,
    'Weight of the linked entities that an event carries (mu)'
),
(
    'ranking', 'text', '"evidence"', NULL, NULL, '{evidence,similarity}', NULL,
    'similarity: the paper''s coarse rank; evidence: with entities, bridges and cover'
),
(
    'repeat_penalty', 'real', '0.1', 0, 10, NULL, NULL,
    'Penalty for each event taken before on the same subject (rho)'
),
(
    'seed_entity_event_limit', 'integer', '20', 1, 1000, NULL, 'events',
    'Seed events per linked entity, the most relevant first'
),
(
    'seed_event_limit', 'integer', '60', 1, 1000, NULL, 'events',
    'Directly recalled seed events'
),
(
    'similarity_weight', 'real', '0.6', 0, 10, NULL, NULL,
    'Weight of the relevance, rescaled within the candidates'
),
(
    'strict', 'boolean', 'false', NULL, NULL, NULL, NULL,
    'Whether a stage that has to fall back is an error'
),
(
    'subject_weight', 'real', '1.5', 0, 10, NULL, NULL,
    'Worth of a linked entity that the event is about'
),
(
    'trigram_similarity', 'real', '0.5', 0, 1, NULL, 'trigram similarity',
    'Least similarity at which a misspelt name links'
),
(
    'understand', 'text', '"embedding"', NULL, NULL, '{sql,embedding,model}', NULL,
    'Who reads the question: sql, the database alone; embedding, the gateway embeds it where none '
    'is given; model, and a language model names its entities'
)
ON CONFLICT (name) DO UPDATE
    SET
        type = excluded.type, default_value = excluded.default_value, minimum = excluded.minimum,
        maximum = excluded.maximum, choices = excluded.choices, unit = excluded.unit,
        meaning = excluded.meaning;
